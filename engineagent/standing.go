package engineagent

import (
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
)

// Standing returns what is thought of the engine, and why.
func (a *Agent) Standing() book.Standing {
	return look(a.book, func(b *book.Book) book.Standing { return b.Standing(a.cfg.Now()) })
}

// The words for a standing.
const (
	standingGood      = "good"
	standingReturning = "returning"
	standingEjected   = "ejected"
)

// logStandingLocked logs a change of the standing. It is called with each poll, so that the book's lock is not held for it.
func (a *Agent) logStandingLocked() {
	s := a.Standing()
	is := standingGood
	switch {
	case s.Ejected:
		is = standingEjected
	case s.Returning:
		is = standingReturning
	}
	switch was := a.standing; {
	case is == was || was == "" && is == standingGood:
	case is == standingEjected:
		a.log.Warn("engine ejected", "cause", s.Cause)
	default:
		a.log.Info("engine changed standing", "standing", is)
	}
	a.standing = is
}

// standingNote says in words that the engine is ejected, or returns; "" when all is well.
func standingNote(s *book.Standing) string {
	switch {
	case s.Ejected:
		return fmt.Sprintf("is ejected since %s UTC because it %s: it is tried by single requests, others go to other engines",
			s.Since.UTC().Format(time.TimeOnly), causeWords(s.Cause))
	case s.Returning:
		return fmt.Sprintf("returned at %s UTC and gets more requests by and by", s.Since.UTC().Format(time.TimeOnly))
	case s.Quiet:
		return "has sent nothing for longer than it should take: requests go to other engines"
	}
	return ""
}

func causeWords(c book.Cause) string {
	switch c {
	case book.CauseErrors:
		return "failed too many requests"
	case book.CauseSlow:
		return "is much slower than it was"
	case book.CauseStuck:
		return "accepts requests and does not answer"
	}
	return string(c)
}
