package openai

import "bytes"

// name is a member name that is read somewhere in a request or an answer. One table serves every object: which of the
// names an object may have is for its reader to know.
type name uint8

// members holds the value of each name in one object.
type members [numNames]span

// The names. The zero name is every name that is not read.
const (
	nNone name = iota

	// The request.
	nModel
	nMessages
	nInput
	nInputIDs
	nPrompt
	nInstructions
	nSystem
	nTools
	nToolChoice
	nStream
	nStreamOptions
	nIncludeUsage
	nN
	nMaxTokens
	nMaxCompletionTokens
	nMaxOutputTokens
	nStore
	nBackground
	nEcho
	nLogprobs
	nPromptLogprobs

	// The root of the canonical prompt.
	nLoraPath
	nCacheSalt
	nExtraKey
	nChatTemplate
	nAddSpecialTokens
	nChatTemplateKwargs
	nDocuments
	nReasoningEffort
	nReasoning
	nThinking
	nEnableThinking
	nOutputConfig
	nEffort
	nMMProcessorKwargs
	nMediaIOKwargs
	nImagesConfig
	nMaxDynamicPatch
	nUseAudioInVideo
	nParallelToolCalls
	nResponseFormat
	nStructuredOutputs
	nRegex
	nJSONSchema
	nEbnf
	nTask

	// What leaves a request without keys.
	nTruncatePromptTokens
	nTruncation
	nTruncationSide
	nPromptEmbeds
	nInputEmbeds
	nSuffix
	nPreviousResponseID
	nConversation
	nSessionParams

	// The session.
	nSessionID
	nPromptCacheKey
	nUser
	nMetadata
	nUserID

	// Messages, items, blocks and their parts.
	nRole
	nContent
	nName
	nReasoningContent
	nToolCalls
	nToolCallID
	nPrefix
	nPartial
	nType
	nText
	nRefusal
	nID
	nFunction
	nCustom
	nArguments
	nCallID
	nOutput
	nSummary
	nToolUseID
	nToolName

	// Media.
	nImageURL
	nImage
	nImageEmbeds
	nInputAudio
	nAudioURL
	nAudio
	nAudioEmbeds
	nVideoURL
	nVideo
	nFile
	nSource
	nURL
	nData
	nFileData
	nFileURL
	nFileID
	nMediaType
	nUUID

	// Tools.
	nDescription
	nParameters
	nInputSchema

	// Answers.
	nChoices
	nDelta
	nFinishReason
	nUsage
	nError
	nItem
	nResponse
	nMessage
	nContentBlock
	nStopReason
	nPartialJSON
	nPromptTokens
	nCompletionTokens
	nInputTokens
	nOutputTokens
	nPromptTokensDetails
	nInputTokensDetails
	nCachedTokens
	nCacheReadInputTokens
	nCacheCreationInputTokens
	nFunctionCall
	nObject

	numNames
)

// nameOf returns the name that key, a member name as it stands in the body, is.
func nameOf(key []byte) name {
	if n := plainName(key); n != 0 {
		return n
	}
	return escapedName(key)
}

// maxEscapedName is the length of the longest name when every byte of it is written as \uXXXX.
const maxEscapedName = 6 * len("cache_creation_input_tokens")

// escapedName is nameOf for a key with escapes in it.
func escapedName(key []byte) name {
	if len(key) > maxEscapedName || bytes.IndexByte(key, '\\') < 0 {
		return nNone
	}
	return plainName(appendUnescaped(nil, key))
}

// String returns the name as it is written in JSON.
func (n name) String() string { return nameTable[n] }

// nameTable is the inverse of plainName.
var nameTable = [numNames]string{
	nModel:                    "model",
	nMessages:                 "messages",
	nInput:                    "input",
	nInputIDs:                 "input_ids",
	nPrompt:                   "prompt",
	nInstructions:             "instructions",
	nSystem:                   "system",
	nTools:                    "tools",
	nToolChoice:               "tool_choice",
	nStream:                   "stream",
	nStreamOptions:            "stream_options",
	nIncludeUsage:             "include_usage",
	nN:                        "n",
	nMaxTokens:                "max_tokens",
	nMaxCompletionTokens:      "max_completion_tokens",
	nMaxOutputTokens:          "max_output_tokens",
	nStore:                    "store",
	nBackground:               "background",
	nEcho:                     "echo",
	nLogprobs:                 "logprobs",
	nPromptLogprobs:           "prompt_logprobs",
	nLoraPath:                 "lora_path",
	nCacheSalt:                "cache_salt",
	nExtraKey:                 "extra_key",
	nChatTemplate:             "chat_template",
	nAddSpecialTokens:         "add_special_tokens",
	nChatTemplateKwargs:       "chat_template_kwargs",
	nDocuments:                "documents",
	nReasoningEffort:          "reasoning_effort",
	nReasoning:                "reasoning",
	nThinking:                 "thinking",
	nEnableThinking:           "enable_thinking",
	nOutputConfig:             "output_config",
	nEffort:                   "effort",
	nMMProcessorKwargs:        "mm_processor_kwargs",
	nMediaIOKwargs:            "media_io_kwargs",
	nImagesConfig:             "images_config",
	nMaxDynamicPatch:          "max_dynamic_patch",
	nUseAudioInVideo:          "use_audio_in_video",
	nParallelToolCalls:        "parallel_tool_calls",
	nResponseFormat:           "response_format",
	nStructuredOutputs:        "structured_outputs",
	nRegex:                    "regex",
	nJSONSchema:               "json_schema",
	nEbnf:                     "ebnf",
	nTask:                     "task",
	nTruncatePromptTokens:     "truncate_prompt_tokens",
	nTruncation:               "truncation",
	nTruncationSide:           "truncation_side",
	nPromptEmbeds:             "prompt_embeds",
	nInputEmbeds:              "input_embeds",
	nSuffix:                   "suffix",
	nPreviousResponseID:       "previous_response_id",
	nConversation:             "conversation",
	nSessionParams:            "session_params",
	nSessionID:                "session_id",
	nPromptCacheKey:           "prompt_cache_key",
	nUser:                     "user",
	nMetadata:                 "metadata",
	nUserID:                   "user_id",
	nRole:                     "role",
	nContent:                  "content",
	nName:                     "name",
	nReasoningContent:         "reasoning_content",
	nToolCalls:                "tool_calls",
	nToolCallID:               "tool_call_id",
	nPrefix:                   "prefix",
	nPartial:                  "partial",
	nType:                     "type",
	nText:                     "text",
	nRefusal:                  "refusal",
	nID:                       "id",
	nFunction:                 "function",
	nCustom:                   "custom",
	nArguments:                "arguments",
	nCallID:                   "call_id",
	nOutput:                   "output",
	nSummary:                  "summary",
	nToolUseID:                "tool_use_id",
	nToolName:                 "tool_name",
	nImageURL:                 "image_url",
	nImage:                    "image",
	nImageEmbeds:              "image_embeds",
	nInputAudio:               "input_audio",
	nAudioURL:                 "audio_url",
	nAudio:                    "audio",
	nAudioEmbeds:              "audio_embeds",
	nVideoURL:                 "video_url",
	nVideo:                    "video",
	nFile:                     "file",
	nSource:                   "source",
	nURL:                      "url",
	nData:                     "data",
	nFileData:                 "file_data",
	nFileURL:                  "file_url",
	nFileID:                   "file_id",
	nMediaType:                "media_type",
	nUUID:                     "uuid",
	nDescription:              "description",
	nParameters:               "parameters",
	nInputSchema:              "input_schema",
	nChoices:                  "choices",
	nDelta:                    "delta",
	nFinishReason:             "finish_reason",
	nUsage:                    "usage",
	nError:                    "error",
	nItem:                     "item",
	nResponse:                 "response",
	nMessage:                  "message",
	nContentBlock:             "content_block",
	nStopReason:               "stop_reason",
	nPartialJSON:              "partial_json",
	nPromptTokens:             "prompt_tokens",
	nCompletionTokens:         "completion_tokens",
	nInputTokens:              "input_tokens",
	nOutputTokens:             "output_tokens",
	nPromptTokensDetails:      "prompt_tokens_details",
	nInputTokensDetails:       "input_tokens_details",
	nCachedTokens:             "cached_tokens",
	nCacheReadInputTokens:     "cache_read_input_tokens",
	nCacheCreationInputTokens: "cache_creation_input_tokens",
	nFunctionCall:             "function_call",
	nObject:                   "object",
}

// plainName is one switch over the table, which the compiler turns into a search by length and value.
func plainName(key []byte) name {
	switch string(key) {
	case "model":
		return nModel
	case "messages":
		return nMessages
	case "input":
		return nInput
	case "input_ids":
		return nInputIDs
	case "prompt":
		return nPrompt
	case "instructions":
		return nInstructions
	case "system":
		return nSystem
	case "tools":
		return nTools
	case "tool_choice":
		return nToolChoice
	case "stream":
		return nStream
	case "stream_options":
		return nStreamOptions
	case "include_usage":
		return nIncludeUsage
	case "n":
		return nN
	case "max_tokens":
		return nMaxTokens
	case "max_completion_tokens":
		return nMaxCompletionTokens
	case "max_output_tokens":
		return nMaxOutputTokens
	case "store":
		return nStore
	case "background":
		return nBackground
	case "echo":
		return nEcho
	case "logprobs":
		return nLogprobs
	case "prompt_logprobs":
		return nPromptLogprobs
	case "lora_path":
		return nLoraPath
	case "cache_salt":
		return nCacheSalt
	case "extra_key":
		return nExtraKey
	case "chat_template":
		return nChatTemplate
	case "add_special_tokens":
		return nAddSpecialTokens
	case "chat_template_kwargs":
		return nChatTemplateKwargs
	case "documents":
		return nDocuments
	case "reasoning_effort":
		return nReasoningEffort
	case "reasoning":
		return nReasoning
	case "thinking":
		return nThinking
	case "enable_thinking":
		return nEnableThinking
	case "output_config":
		return nOutputConfig
	case "effort":
		return nEffort
	case "mm_processor_kwargs":
		return nMMProcessorKwargs
	case "media_io_kwargs":
		return nMediaIOKwargs
	case "images_config":
		return nImagesConfig
	case "max_dynamic_patch":
		return nMaxDynamicPatch
	case "use_audio_in_video":
		return nUseAudioInVideo
	case "parallel_tool_calls":
		return nParallelToolCalls
	case "response_format":
		return nResponseFormat
	case "structured_outputs":
		return nStructuredOutputs
	case "regex":
		return nRegex
	case "json_schema":
		return nJSONSchema
	case "ebnf":
		return nEbnf
	case "task":
		return nTask
	case "truncate_prompt_tokens":
		return nTruncatePromptTokens
	case "truncation":
		return nTruncation
	case "truncation_side":
		return nTruncationSide
	case "prompt_embeds":
		return nPromptEmbeds
	case "input_embeds":
		return nInputEmbeds
	case "suffix":
		return nSuffix
	case "previous_response_id":
		return nPreviousResponseID
	case "conversation":
		return nConversation
	case "session_params":
		return nSessionParams
	case "session_id":
		return nSessionID
	case "prompt_cache_key":
		return nPromptCacheKey
	case "user":
		return nUser
	case "metadata":
		return nMetadata
	case "user_id":
		return nUserID
	case "role":
		return nRole
	case "content":
		return nContent
	case "name":
		return nName
	case "reasoning_content":
		return nReasoningContent
	case "tool_calls":
		return nToolCalls
	case "tool_call_id":
		return nToolCallID
	case "prefix":
		return nPrefix
	case "partial":
		return nPartial
	case "type":
		return nType
	case "text":
		return nText
	case "refusal":
		return nRefusal
	case "id":
		return nID
	case "function":
		return nFunction
	case "custom":
		return nCustom
	case "arguments":
		return nArguments
	case "call_id":
		return nCallID
	case "output":
		return nOutput
	case "summary":
		return nSummary
	case "tool_use_id":
		return nToolUseID
	case "tool_name":
		return nToolName
	case "image_url":
		return nImageURL
	case "image":
		return nImage
	case "image_embeds":
		return nImageEmbeds
	case "input_audio":
		return nInputAudio
	case "audio_url":
		return nAudioURL
	case "audio":
		return nAudio
	case "audio_embeds":
		return nAudioEmbeds
	case "video_url":
		return nVideoURL
	case "video":
		return nVideo
	case "file":
		return nFile
	case "source":
		return nSource
	case "url":
		return nURL
	case "data":
		return nData
	case "file_data":
		return nFileData
	case "file_url":
		return nFileURL
	case "file_id":
		return nFileID
	case "media_type":
		return nMediaType
	case "uuid":
		return nUUID
	case "description":
		return nDescription
	case "parameters":
		return nParameters
	case "input_schema":
		return nInputSchema
	case "choices":
		return nChoices
	case "delta":
		return nDelta
	case "finish_reason":
		return nFinishReason
	case "usage":
		return nUsage
	case "error":
		return nError
	case "item":
		return nItem
	case "response":
		return nResponse
	case "message":
		return nMessage
	case "content_block":
		return nContentBlock
	case "stop_reason":
		return nStopReason
	case "partial_json":
		return nPartialJSON
	case "prompt_tokens":
		return nPromptTokens
	case "completion_tokens":
		return nCompletionTokens
	case "input_tokens":
		return nInputTokens
	case "output_tokens":
		return nOutputTokens
	case "prompt_tokens_details":
		return nPromptTokensDetails
	case "input_tokens_details":
		return nInputTokensDetails
	case "cached_tokens":
		return nCachedTokens
	case "cache_read_input_tokens":
		return nCacheReadInputTokens
	case "cache_creation_input_tokens":
		return nCacheCreationInputTokens
	case "function_call":
		return nFunctionCall
	case "object":
		return nObject
	}
	return nNone
}
