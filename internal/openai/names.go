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
