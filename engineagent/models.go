package engineagent

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Bounds of a model list. A card with its permissions takes 500 bytes, so 4 MiB hold several thousand; the counts are
// those of the wire form of engine.Engine.
const (
	maxModelsBytes = 4 << 20
	maxModels      = 1024
	maxAliases     = 64
	maxNameBytes   = 256
	maxContext     = 1 << 30
)

// card is one entry of /v1/models. vLLM and SGLang give every field, others only the id.
type card struct {
	ID          string  `json:"id"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	OwnedBy     string  `json:"owned_by"`
	MaxModelLen float64 `json:"max_model_len"`
}

// parseModels reads the answer to GET /v1/models. Cards without a usable id are left out.
func parseModels(body []byte) ([]card, error) {
	var list struct {
		Data []card `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("parse models: %w", err)
	}
	return slices.DeleteFunc(list.Data, func(c card) bool { return !usableName(c.ID) }), nil
}

func usableName(s string) bool { return s != "" && len(s) <= maxNameBytes }

// root is what makes two cards one model: the weights they stand for. An adapter is a model of its own, whatever its
// root is.
func (c card) root() string {
	if c.Root == "" || (c.Parent != nil && *c.Parent != "") {
		return "id:" + c.ID
	}
	return "root:" + c.Root
}

// modelsOf makes models of cards. Cards of one root are one model, called like the first id; the others are aliases.
func modelsOf(cards []card) []engine.Model {
	var models []engine.Model
	for _, group := range groupCards(cards) {
		if len(models) == maxModels {
			break
		}
		models = append(models, modelOf(group))
	}
	return models
}

// groupCards gathers the cards of each root, in the order of the first of each.
func groupCards(cards []card) [][]card {
	var groups [][]card
	at := make(map[string]int)
	for _, c := range cards {
		i, ok := at[c.root()]
		if !ok {
			i = len(groups)
			at[c.root()] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

func modelOf(group []card) engine.Model {
	m := engine.Model{Name: group[0].ID}
	for _, k := range group {
		m.MaxContext = max(m.MaxContext, clampInt(k.MaxModelLen, maxContext))
		if !m.Answers(k.ID) && len(m.Aliases) < maxAliases {
			m.Aliases = append(m.Aliases, k.ID)
		}
	}
	return m
}

// adaptersOf returns the names that stand for adapters.
func adaptersOf(cards []card) map[string]bool {
	names := map[string]bool{}
	for _, c := range cards {
		if c.Parent != nil && *c.Parent != "" {
			names[c.ID] = true
		}
	}
	return names
}
