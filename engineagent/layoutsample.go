package engineagent

import (
	"encoding/json"
	"maps"
)

// The texts of the probe. Their words are common, so that they are few tokens in any vocabulary; texts that are told apart
// begin and end with other words, and share no three words in a row.
const (
	firstSystem = "You write short answers about rivers and mountains for a small school in the north, and you " +
		"always name the country first and the height or length after it"
	otherSystem = "Every train that leaves before noon has a blue ticket which costs less than green ones do, so " +
		"people who travel early save money on each trip they make"
	firstQuestion = "Which of the long rivers in the east of Africa flows past the most cities today"
	otherQuestion = "Does someone sell tickets for night trains when all offices have been closed since Monday evening"
	nextQuestion  = "Please compare both with whatever lake lies closest to them and explain why"
	firstAnswer   = "That would be the Nile"
)

// sample is one conversation of the probe.
type sample struct {
	system, question string
	goesOn           bool           // an answer with a thought and another question follow
	tools            bool           // two tools are offered
	options          map[string]any // of the chat template
	fields           map[string]any // further fields of the request
}

// body is the request. Tokenize and render routes take the same one.
func (s *sample) body(model string) map[string]any {
	messages := []map[string]any{
		{"role": "system", "content": s.system},
		{"role": "user", "content": s.question},
	}
	if s.goesOn {
		// The thought is the question of another rendering, so that its tokens are known. Servers call it one or the other name.
		messages = append(messages, map[string]any{
			"role": "assistant", "content": firstAnswer, "reasoning": otherQuestion, "reasoning_content": otherQuestion,
		}, map[string]any{"role": "user", "content": nextQuestion})
	}
	body := map[string]any{"model": model, "messages": messages}
	if s.tools {
		body["tools"] = []map[string]any{tool("measure", "river"), tool("locate", "city")}
	}
	if s.options != nil {
		body["chat_template_kwargs"] = s.options
	}
	maps.Copy(body, s.fields)
	return body
}

func tool(name, what string) map[string]any {
	return map[string]any{"type": "function", "function": map[string]any{
		"name": name, "description": "Tell where a " + what + " begins",
		"parameters": json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`),
	}}
}

func documents() []map[string]any {
	return []map[string]any{{"title": "Lakes", "text": "Lake Victoria is the largest lake in Africa"}}
}

func answerForm() map[string]any {
	return map[string]any{"type": "json_schema", "json_schema": map[string]any{
		"name": "answer", "schema": json.RawMessage(`{"type":"object","properties":{"river":{"type":"string"}}}`),
	}}
}
