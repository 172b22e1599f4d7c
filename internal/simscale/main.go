package simscale

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
)

// Main runs the model in fake time, writes its result to out as one line of JSON, and ends the process: with status 0, or
// with 1 when that failed, which standard output then says. Go gives fake time to nothing but tests, so it is run as one;
// os.Args must have no flag of the testing package. Call it in a process of its own: what that takes of memory is what the
// agent takes.
func Main(ctx context.Context, c Config, out io.Writer) {
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, err := Run(ctx, c)
			if err == nil {
				err = json.NewEncoder(out).Encode(r)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: fmt.Sprintf("%d agents", c.Agents), F: test}}, nil, nil)
}
