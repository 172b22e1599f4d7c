package agreed

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAnOfferedStateIsFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		near, far := c.add("near", -1), c.add("far", -1)
		c.propose("v1", "1", "a")
		c.await(5*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
		c.partition([]string{"far"})
		time.Sleep(10 * time.Second)
		c.propose("v1", "2", "b")
		c.await(5*time.Second, "policy at one", func() bool { return near.State().Policy.Text == "b" })
		// The voters are gone, and the two are left with each other: push/pull carries the mark.
		c.partition([]string{"near", "far"})
		if err := far.Offer("near", near.Advertise()); err != nil {
			t.Fatal(err)
		}
		c.await(5*time.Second, "policy at the other", func() bool { return far.State().Policy.Text == "b" })
		opened := c.opened
		_ = far.Offer("near", near.Advertise())
		time.Sleep(100 * time.Millisecond)
		if c.opened > opened+1 { // a watch may begin
			t.Errorf("a known state was fetched again by %d streams", c.opened-opened)
		}
		if err := far.Offer("near", []byte("x")); err == nil {
			t.Error("an offer of garbage was taken")
		}
	})
}

func TestAStateThatIsNotTheOneOfferedIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		one, other := c.add("one", -1), c.add("other", -1)
		c.partition([]string{"other"}) // no watch begins
		h, _, _ := apply(first(), policy("1", "a"), 1)
		one.adopt(h)
		wrong := h.mark
		wrong.Hash[0]++
		c.partition()
		if err := other.fetch(offer{"one", wrong}); err == nil {
			t.Error("a state with another hash was taken")
		}
		if err := other.fetch(offer{"one", h.mark}); err != nil || other.State().Policy.Text != "a" {
			t.Errorf("the state that was offered was not taken: %v", err)
		}
	})
}

func TestStatesOfAnotherGroupAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		g := c.add("one", -1)
		mine, _, _ := apply(first(), &Command{ID: "1", Kind: kindFound, Model: "mine"}, 1)
		_, next, _ := apply(first(), &Command{ID: "1", Kind: kindFound, Model: "theirs"}, 1)
		g.adopt(mine)
		theirs, _, _ := apply(next, policy("2", "x"), 2)
		g.adopt(theirs)
		if g.State().Group != "mine" || len(g.Status().Faults) != 1 {
			t.Errorf("state of %s, status %+v", g.State().Group, g.Status())
		}
	})
}
