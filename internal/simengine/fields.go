package simengine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The fields that TensorRT-LLM knows; it refuses requests with others, where vLLM and SGLang let them pass.
const (
	commonFields = `model stream stream_options n max_tokens min_tokens ignore_eos frequency_penalty logit_bias logprobs
		presence_penalty response_format seed stop temperature top_p user best_of use_beam_search top_k top_p_min min_p
		repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output skip_special_tokens
		spaces_between_special_tokens truncate_prompt_tokens add_special_tokens lora_request disaggregated_params
		cache_salt return_context_logits detokenize`
	chatFields = commonFields + ` messages tools tool_choice max_completion_tokens top_logprobs parallel_tool_calls
		reasoning_effort echo add_generation_prompt documents chat_template chat_template_kwargs mm_processor_kwargs
		prompt_token_ids`
	completionFields = commonFields + ` prompt echo suffix`
	responseFields   = `model input instructions background include max_output_tokens max_tool_calls metadata
		parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text tool_choice
		tools top_logprobs top_p truncation user`
)

// checkFields refuses fields that are not in known, for kinds that do.
func (e *Engine) checkFields(body []byte, known string) error {
	if e.cfg.Kind != KindTRTLLM {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := decodeBody(body, &fields); err != nil {
		return err
	}
	names := strings.Fields(known)
	for name := range fields {
		if !slices.Contains(names, name) {
			return badRequest(fmt.Sprintf("field %q is not known", name), "")
		}
	}
	return nil
}
