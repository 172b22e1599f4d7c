package simengine

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// capture is one request to a real engine and its answer.
type capture struct {
	name, method, path, contentType, request, answer string
}

func readCaptures(t *testing.T, file string) []capture {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []capture
	heads := regexp.MustCompile(`(?m)^-- (\S+) --\n`).FindAllStringSubmatchIndex(string(b), -1)
	for i, h := range heads {
		end := len(b)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		line, rest, _ := strings.Cut(string(b[h[1]:end]), "\n")
		body, answer, _ := strings.Cut(rest, "\n")
		f := strings.Fields(line)
		out = append(out, capture{string(b[h[2]:h[3]]), f[0], f[1], f[2], body, answer})
	}
	return out
}

// shape is JSON with its keys in order and values only where they are words of the protocol. Numbers are all alike, and
// so are neighbours in a list that have the same shape.
func shape(t *testing.T, s string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	got := shapeNext(t, d, "")
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("more than one value in %s", s)
	}
	return got
}

func shapeNext(t *testing.T, d *json.Decoder, key string) string {
	t.Helper()
	token, err := d.Token()
	if err != nil {
		t.Fatal(err)
	}
	switch v := token.(type) {
	case json.Delim:
		var parts []string
		for d.More() {
			if v == '[' {
				parts = append(parts, shapeNext(t, d, ""))
				continue
			}
			k, err := d.Token()
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, fmt.Sprint(k, ":", shapeNext(t, d, k.(string))))
		}
		end, _ := d.Token()
		return fmt.Sprint(v, strings.Join(slices.Compact(parts), " "), end)
	case string:
		switch key {
		case "object", "type", "role", "finish_reason", "stop_reason", "param", "owned_by", "detail":
			return v
		}
		return "text"
	case float64:
		if key == "code" {
			return fmt.Sprint(v)
		}
		return "n"
	case nil:
		return "null"
	}
	return fmt.Sprint(token)
}

// answerShape is the shape of a whole answer or of the events of a stream.
func answerShape(t *testing.T, s string) string {
	t.Helper()
	status, body, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if !strings.HasPrefix(body, "data: ") && !strings.HasPrefix(body, "event: ") {
		if body == "" {
			return status
		}
		return status + "\n" + shape(t, body)
	}
	lines := []string{status}
	for event := range strings.SplitSeq(body, "\n\n") {
		name, data, _ := strings.Cut(event, "data: ")
		if data != "[DONE]" {
			data = shape(t, data)
		}
		lines = append(lines, name+data)
	}
	return strings.Join(firsts(lines), "\n")
}

// firsts leaves out lines that were there before: how many tokens an answer has, and which choice is first to have one,
// is not the matter here.
func firsts(lines []string) []string {
	var out []string
	for _, l := range lines {
		if !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}

func TestAnswersHaveTheShapeOfVLLMs(t *testing.T) {
	for _, c := range readCaptures(t, "testdata/vllm/0.32.0.txt") {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(cfg *Config) {
					cfg.Model, cfg.BlockTokens, cfg.MaxContext = "tiny", 32, 3072
					cfg.KVEvents.Endpoint, cfg.KVEvents.ReplayEndpoint = "tcp://*:8501", "tcp://*:8502"
					cfg.KVEvents.Listen = func(string, string) (net.Listener, error) { return newMemNet(), nil }
					if strings.HasPrefix(c.name, "reasons-") {
						cfg.Template = TemplateDropsThoughts
						c.request = strings.Replace(c.request, `"max_tokens":3`, `"max_tokens":4`, 1)
					}
				})
				status, body := r.do(c.method, c.path, c.request, c.contentType)
				want := strings.Split(answerShape(t, c.answer), "\n")
				got := strings.Split(answerShape(t, fmt.Sprint(status, "\n", body)), "\n")
				if strings.HasPrefix(c.name, "reasons-") { // that model's thoughts have no mark before them
					got = slices.DeleteFunc(got, func(l string) bool { return !slices.Contains(want, l) })
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-vLLM +here):\n%s", diff)
				}
			})
		})
	}
}
