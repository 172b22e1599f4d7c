package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// errStep says that a request names no step of a change.
var errStep = errors.New("step must be begin or rollback")

// postGeometry answers POST /debug/geometry?step=begin&bits=N&hashes=N and ?step=rollback. The leader does the rest.
func (a *agreement) postGeometry(ctx context.Context, r *http.Request) (any, error) {
	q := r.URL.Query()
	switch q.Get("step") {
	case "begin":
		g, err := geometryNamed(q)
		if err != nil {
			return nil, err
		}
		return a.change(ctx, agreed.Command{Kind: agreed.KindGeometry, Author: author(r), Geometry: g})
	case "rollback":
		return a.change(ctx, agreed.Command{Kind: agreed.KindGeometryRollback, Author: author(r)})
	}
	return nil, errStep
}

func geometryNamed(q url.Values) (*agreed.Geometry, error) {
	bits, err := number(q, "bits")
	if err != nil {
		return nil, err
	}
	hashes, err := number(q, "hashes")
	if err != nil {
		return nil, err
	}
	if hashes == 0 {
		hashes = uint64(cachestate.DefaultGeometry().Hashes)
	}
	g := agreed.Geometry{Bits: bits, Hashes: int(min(hashes, cachestate.MaxHashes+1))}
	_, err = geometryOf(g)
	return &g, err
}

// postScheme answers POST /debug/scheme?step=begin&model=NAME&seed=HEX&layout=N and ?step=rollback&model=NAME.
func (a *agreement) postScheme(ctx context.Context, r *http.Request) (any, error) {
	q := r.URL.Query()
	c := agreed.Command{Kind: agreed.KindSchemeRollback, Author: author(r), Model: q.Get("model")}
	switch q.Get("step") {
	case "begin":
		c.Kind = agreed.KindScheme
		c.Scheme = &agreed.Scheme{Version: cachestate.SchemeVersion, Seed: q.Get("seed"), Layout: q.Get("layout")}
		if _, err := keyingOf(*c.Scheme); err != nil {
			return nil, fmt.Errorf("refused: %w", err)
		}
	case "rollback":
	default:
		return nil, errStep
	}
	return a.change(ctx, c)
}
