package agreed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// cuts is how many writes there are from an empty folder to a few decided commands, and some more.
const cuts = 40

// TestADiskThatFailsAtAnyWriteLosesNothing breaks a disk at each write in turn, for one voter alone and for one of three,
// kills the agent, and starts it again on the disk as it was left.
func TestADiskThatFailsAtAnyWriteLosesNothing(t *testing.T) {
	broken := diskFigures{}
	for _, voters := range []int{1, 3} {
		for _, part := range []bool{false, true} {
			t.Run(fmt.Sprintf("voters %d, in part %v", voters, part), func(t *testing.T) {
				for cut := 0; cut < cuts; cut += voters { // one voter writes all by itself, so that it meets each cut
					broken.cuts++
					synctest.Test(t, func(t *testing.T) { broken.breakDisk(t, voters, cut, part) })
				}
			})
		}
	}
	t.Logf("figure disk_cuts %d disks", broken.cuts)
	t.Logf("figure disk_writes_acknowledged %d commands", broken.acknowledged)
	t.Logf("figure disk_writes_lost %d commands", broken.lost)
	t.Logf("figure disk_starts_failed %d starts", broken.cuts-broken.started)
}

// diskFigures count what came of disks that broke.
type diskFigures struct{ cuts, acknowledged, lost, started int }

func (d *diskFigures) breakDisk(t *testing.T, voters, cut int, part bool) {
	c := newCluster(t)
	broken := &node{name: "v1", folder: filepath.Join(c.folder, "v1"), expect: voters, disk: newMemDisk()}
	broken.disk.failAfter(cut, part)
	c.put(broken)
	c.start("v1")
	for _, name := range names("v", voters)[1:] {
		c.add(name, voters)
	}
	var acknowledged []string
	for i := range 6 {
		id := fmt.Sprint(i)
		if _, err := c.group("v1").Propose(t.Context(), *policy(id, "p"+id)); err == nil {
			acknowledged = append(acknowledged, id)
		}
	}
	if cut == 0 && len(acknowledged) > 0 && voters == 1 || cut >= cuts-voters && len(acknowledged) == 0 {
		t.Errorf("cut %d: %d commands were acknowledged", cut, len(acknowledged))
	}
	c.killAgent("v1")
	broken.disk.heal()
	c.start("v1")
	c.await(time.Minute, fmt.Sprintf("write after cut %d", cut), func() bool {
		_, err := c.group("v1").Propose(t.Context(), *policy("last", "last"))
		return err == nil
	})
	s, err := c.group("v1").Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.started++
	d.acknowledged += len(acknowledged)
	for _, id := range acknowledged {
		if _, ok := recall(s.Remembered, id); !ok {
			d.lost++
			t.Errorf("cut %d: command %s was acknowledged and is lost", cut, id)
		}
	}
	c.await(20*time.Second, "recovery", func() bool { return len(c.group("v1").Status().Faults) == 0 && c.everywhere("last") })
}

func TestAFullDiskIsToldAndUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		c.propose("v1", "1", "a")
		full := c.leader()
		c.agents[full].disk.failAfter(0, false)
		// The others go on without it, and it follows them as a watcher does.
		other := names("v", 3)[0]
		if other == full {
			other = "v2"
		}
		c.propose(other, "2", "b")
		c.await(10*time.Second, "the state at the agent with the full disk", func() bool { return c.everywhere("b") })
		if s := c.group(full).Status(); len(s.Faults) == 0 || s.Faults[0].Advice == "" {
			t.Errorf("status of an agent with a full disk: %+v", s)
		}
		c.agents[full].disk.heal()
		c.await(30*time.Second, "recovery", func() bool {
			s := c.group(full).Status()
			return len(s.Faults) == 0 && s.Role == RoleVoter
		})
	})
}

func TestADamagedFolderIsToldAndRoutesOn(t *testing.T) {
	tests := []struct {
		name   string
		damage func(folder string) error
		part   string
	}{
		{"log of garbage", func(f string) error {
			return os.WriteFile(filepath.Join(f, logFile), bytes.Repeat([]byte{0xa5}, 1<<16), fileMode)
		}, "raft"},
		{"log cut off", func(f string) error { return os.Truncate(filepath.Join(f, logFile), 9000) }, "raft"},
		{"raft id of garbage", func(f string) error { return os.WriteFile(filepath.Join(f, idFile), []byte("x"), fileMode) }, "raft id"},
		{"founding of garbage", func(f string) error { return os.WriteFile(filepath.Join(f, foundingFile), []byte("x"), fileMode) }, "founding"},
		{"state of garbage", func(f string) error { return os.WriteFile(filepath.Join(f, stateFile), []byte("x"), fileMode) }, "state file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.found(1)
				c.agents["v1"].disk = nil // the real one
				c.killAgent("v1")
				if err := os.RemoveAll(c.agents["v1"].folder); err != nil {
					t.Fatal(err)
				}
				c.start("v1")
				c.await(30*time.Second, "a leader", func() bool { return c.leader() != "" })
				c.propose("v1", "1", "a")
				c.await(5*time.Second, "state file", func() bool {
					h, err := loadState(c.agents["v1"].folder)
					return err == nil && h != nil && h.state.Policy.Text == "a"
				})
				c.killAgent("v1")
				if err := tt.damage(c.agents["v1"].folder); err != nil {
					t.Fatal(err)
				}
				g := c.start("v1")
				time.Sleep(5 * time.Second)
				found := false
				for _, f := range g.Status().Faults {
					found = found || (f.Part == tt.part && f.Advice != "")
				}
				if tt.part == "state file" {
					found = g.State().Policy.Text == "a" // the log has it, and the file is written anew
				} else if g.State().Policy.Text != "a" {
					t.Error("the last state is not in force")
				}
				if !found {
					t.Errorf("status = %+v, want a fault of the %s", g.Status(), tt.part)
				}
			})
		})
	}
}

var (
	killRounds = flag.Int("kill-rounds", 10, "rounds of TestAKilledProcessLosesNothing")
	killFolder = flag.String("kill-folder", "", "data folder of the process that TestAKilledProcessLosesNothing kills")
)

// TestAKilledProcessLosesNothing kills a process with SIGKILL while it writes, and starts it again on the same folder:
// whatever it acknowledged must be there.
func TestAKilledProcessLosesNothing(t *testing.T) {
	if *killFolder != "" {
		writeUntilKilled(t, *killFolder)
		return
	}
	k := killed{folder: t.TempDir()}
	for range *killRounds {
		k.live(t)
	}
	t.Logf("figure kill_lives %d processes", k.lives)
	t.Logf("figure kill_writes_acknowledged %d commands", len(k.acknowledged))
	t.Logf("figure kill_writes_lost %d commands", k.lost)
	t.Logf("figure kill_starts_failed %d starts", k.failed)
	if len(k.acknowledged) < *killRounds {
		t.Errorf("only %d commands were acknowledged", len(k.acknowledged))
	}
}

// killed is a process that is killed again and again.
type killed struct {
	folder       string
	lives        int
	acknowledged []string // ids
	lost, failed int
}

// live runs one life of the process, which reports what it finds, then each command that was acknowledged. Every fourth
// life ends while it begins.
func (k *killed) live(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestAKilledProcessLosesNothing$", "-kill-folder", k.folder)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, after := bufio.NewScanner(out), rand.IntN(12)
	lines.Buffer(nil, MaxState)
	if k.lives++; k.lives%4 == 0 {
		after = -1
		time.AfterFunc(rand.N(60*time.Millisecond), func() { _ = cmd.Process.Kill() })
	}
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "has":
			k.checkFound(t, strings.Fields(rest))
		case "did":
			k.acknowledged = append(k.acknowledged, rest)
			after--
		case "failed":
			t.Errorf("life %d: %s", k.lives, rest) // and ends
		}
		if after < 0 {
			_ = cmd.Process.Kill() // again and again until the pipe ends
		}
	}
	if err := cmd.Wait(); err == nil || after >= 0 {
		k.failed++
		t.Errorf("life %d: the process ended by itself: %v\n%s", k.lives, err, &stderr)
	}
}

// checkFound looks for the last commands that were acknowledged before, of which the window holds at least half its size.
func (k *killed) checkFound(t *testing.T, found []string) {
	for _, id := range k.acknowledged[max(0, len(k.acknowledged)-windowSize/2):] {
		if !slices.Contains(found, id) {
			k.lost++
			t.Errorf("command %s was acknowledged and is lost", id)
		}
	}
}

// writeUntilKilled is the process: one voter, on a real disk and in real time.
func writeUntilKilled(t *testing.T, folder string) {
	cfg := DefaultConfig()
	cfg.Name, cfg.Folder, cfg.Expect = "v1", folder, 1
	cfg.Agents, cfg.Streams = alone{}, alone{}
	cfg.Timings.Heartbeat, cfg.Timings.Found, cfg.Timings.Reconcile = 20*time.Millisecond, 10*time.Millisecond, 20*time.Millisecond
	g, err := New(cfg)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	go func() { _ = g.Run(t.Context()) }()
	s, err := g.Read(t.Context())
	if err != nil {
		fmt.Println("failed", err, g.Status())
		return
	}
	ids := make([]string, 0, len(s.Remembered))
	for _, r := range s.Remembered {
		ids = append(ids, r.ID)
	}
	fmt.Println("has", strings.Join(ids, " "))
	for i := 0; ; i++ {
		id := fmt.Sprint(os.Getpid(), "-", s.Index, "-", i)
		if _, err := g.Propose(t.Context(), *policy(id, "p")); err != nil {
			fmt.Println("failed", err, g.Status())
			return
		}
		fmt.Println("did", id)
	}
}

// alone is a mesh without other agents.
type alone struct{}

func (alone) Agents() []Agent { return nil }

func (alone) Open(context.Context, string) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}
