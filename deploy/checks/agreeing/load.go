package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// outcomes are what clients saw of some requests.
type outcomes struct {
	mu     sync.Mutex
	first  []time.Duration // bytes of the answer, after the request was sent
	failed []error
}

// send has clients stream n chats, evenly over period and by turns to the agents. It returns when all have ended.
func send(ctx context.Context, agents []*agent, model string, n int, period time.Duration) *outcomes {
	o := &outcomes{}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	tick := time.NewTicker(period / time.Duration(n))
	defer tick.Stop()
	for i := range n {
		wg.Go(func() { o.add(chat(ctx, client, agents[i%len(agents)], model)) })
		<-tick.C
	}
	wg.Wait()
	return o
}

func (o *outcomes) add(first time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.failed = append(o.failed, err)
		return
	}
	o.first = append(o.first, first)
}

// ttft returns a quantile of the times to the first bytes, in milliseconds.
func (o *outcomes) ttft(q float64) float64 {
	if len(o.first) == 0 {
		return 0
	}
	slices.Sort(o.first)
	return float64(o.first[int(q*float64(len(o.first)-1))]) / float64(time.Millisecond)
}

// why names the first failure.
func (o *outcomes) why() string {
	if len(o.failed) == 0 {
		return ""
	}
	return "; the first failed with: " + o.failed[0].Error()
}

// chat streams one answer to a prompt that no engine has, to its end.
func chat(ctx context.Context, client *http.Client, a *agent, model string) (first time.Duration, err error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": 8,
		"messages": []map[string]string{{"role": "user", "content": fmt.Sprint(rand.Uint64(), " say something")}},
	})
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.HTTP+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	resp, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return 0, fmt.Errorf("%s answers %s: %s", a.Name, resp.Status, text)
	}
	return readStream(resp.Body, begin)
}

var errNoAnswer = errors.New("the stream has no end or no content")

// readStream returns when the first content came; the events must end as they should.
func readStream(body io.Reader, begin time.Time) (first time.Duration, err error) {
	done := false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			done = true
		case strings.HasPrefix(data, `{"error"`):
			return 0, fmt.Errorf("the stream broke: %.200s", data)
		case first == 0 && strings.Contains(data, `"content":"`):
			first = time.Since(begin)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !done || first == 0 {
		return 0, errNoAnswer
	}
	return first, nil
}
