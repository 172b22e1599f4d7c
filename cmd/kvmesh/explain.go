package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"text/tabwriter"

	"github.com/kvmesh/kvmesh/forward"
)

type explainCmd struct {
	agentFlags
	File   string   `arg:"" help:"File with the body of a request; - for standard input." type:"path" placeholder:"FILE"`
	Route  string   `help:"Path that the request would be sent to; by default that of a chat, or of a completion when it has a prompt." placeholder:"PATH"`
	Header []string `help:"A header field that it would have, such as x-team:support. May be repeated." placeholder:"NAME:VALUE" sep:"none"`
	JSON   bool     `name:"json" help:"Print it as JSON."`
}

// Run says what would happen to a request, and sends it to no engine.
func (c *explainCmd) Run(ctx context.Context) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	query := url.Values{"route": {cmp.Or(c.Route, guessRoute(body))}, "header": c.Header}
	answer, err := c.client().send(ctx, http.MethodPost, "/debug/explain?"+query.Encode(), bytes.NewReader(body), answerTimeout)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = os.Stdout.Write(answer)
		return err
	}
	var e forward.Explanation
	if err := c.read(answer, &e); err != nil {
		return err
	}
	return writeExplanation(os.Stdout, &e)
}

func (c *explainCmd) body() ([]byte, error) {
	if c.File == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(c.File)
}

// guessRoute returns the route that a body is for, by the field that holds its prompt.
func guessRoute(body []byte) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(body, &fields) // the agent says what is wrong with it
	for field, route := range map[string]string{"prompt": "/v1/completions", "input": "/v1/responses"} {
		if _, ok := fields[field]; ok && fields["messages"] == nil {
			return route
		}
	}
	return "/v1/chat/completions"
}

// writeExplanation prints an explanation for a person.
func writeExplanation(w io.Writer, e *forward.Explanation) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if e.Refused != "" {
		fmt.Fprintf(t, "refused\t%s\n", e.Refused)
		return t.Flush()
	}
	fmt.Fprintf(t, "model\t%s, by %s\n", e.Model, e.Route)
	fmt.Fprintf(t, "class\t%s, strategy %s\n", e.Class, e.Strategy)
	keys := fmt.Sprintf("%d bytes, %d keys", e.PromptBytes, e.Keys)
	if e.Keyless != "" {
		keys += ": " + e.Keyless
	}
	fmt.Fprintf(t, "prompt\t%s\n", keys)
	fmt.Fprintf(t, "queued\t%s\n", e.Queued)
	fmt.Fprintf(t, "hedged\t%s\n", e.Hedged)
	fmt.Fprintf(t, "continued\t%s\n", e.Continued)
	fmt.Fprintf(t, "decision\t%s\n", decisionOf(e))
	if err := t.Flush(); err != nil || len(e.Candidates) == 0 {
		return err
	}
	fmt.Fprintln(t, "\nENGINE\tSTATE\tSCORE\tOVERLAP\tNEW\tQUEUED\tIN FLIGHT")
	for _, c := range e.Candidates {
		fmt.Fprintf(t, "%s\t%s\t%.3f s\t%d tokens\t%.3f s\t%.3f s\t%d\n",
			c.Engine, c.State, c.Score, c.OverlapTokens, c.NewSeconds, c.QueuedSeconds, c.InFlight)
	}
	return t.Flush()
}

// decisionOf names the engine that the request would go to.
func decisionOf(e *forward.Explanation) string {
	if len(e.Candidates) == 0 {
		return "no engine"
	}
	words := fmt.Sprintf("%s, for %s", e.Candidates[0].Engine, e.Reason)
	if e.TieBreak != "" {
		words += ", " + e.TieBreak
	}
	return words
}
