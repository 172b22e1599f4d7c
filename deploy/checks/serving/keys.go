package main

import (
	"context"
	"strings"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// keyTests are the property tests of prompt keys, as package.Test. Each must pass: one that is renamed or lost is
// missed here.
func keyTests() []string {
	return []string{
		// one prompt in two pieces, two prompts with a common beginning, a dumb twin
		"cachestate.TestPromptAgreesWithPlainPrompt",
		"cachestate.TestPromptsShareKeysUpToWhereTheyDiffer",
		"cachestate.TestCuttingAFieldIntoPiecesChangesNothing",
		"cachestate.TestFieldsDoNotRunIntoEachOther",
		"cachestate.TestOtherSeedSharesNoKey",
		"cachestate.TestKeysOfVersion1Stay",
		// what is rendered and what is not; spacing, escapes and the order of fields; the three APIs
		"openai.TestWhatIsRenderedAlikeWalksAlike",
		"openai.TestWhatIsRenderedApartWalksApart",
		"openai.TestConversationWalksAlikeThroughEveryAPI",
		"openai.TestTextsThatBeginAlikeWalkAlikeUntilTheyPart",
		"openai.TestToolsStandWhereTheLayoutHasThem",
		// consecutive requests of Claude Code, Codex and an agent on an OpenAI SDK
		"openai.TestNextTurnOfAnAgentBeginsWithAllOfTheLast",
		"openai.TestFixturesWalkAsTheTwin",
		"openai.TestClaudeCodeRequestIsReadWhole",
		// all of it together, from the bytes of a request to its keys
		"forward.TestTextsWithACommonStartShareEveryKeyUpToItsEnd",
		"forward.TestFormOfTheJSONDoesNotChangeKeys",
		"forward.TestEachTurnSharesEveryKeyOfTheOneBefore",
	}
}

// checkKeys runs the property tests of prompt keys, not from the cache of go test.
func checkKeys(ctx context.Context, h *harness) error {
	var pattern []string
	for _, name := range keyTests() {
		_, test, _ := strings.Cut(name, ".")
		pattern = append(pattern, test)
	}
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-json", "-count=1", "-run", "^(" + strings.Join(pattern, "|") + ")$",
		"./cachestate", "./internal/openai", "./forward",
	}}.Run(ctx)
	r, readErr := check.ReadTests(out)
	if readErr != nil || r.Passed+r.Failed == 0 {
		return firstError(readErr, err)
	}
	h.Figures.Zero("keys_tests_failed", float64(r.Failed), "%d tests and subtests passed", r.Passed)
	missing := r.Missing(keyTests())
	h.Figures.Zero("keys_tests_missing", float64(len(missing)), "of %d named tests%s", len(keyTests()), list(missing))
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns ": a, b", and nothing for no names.
func list(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": " + strings.Join(names, ", ")
}
