package spread

import "time"

// HeartbeatPeriod returns the period of loads in a mesh of so many agents: probes give the freshness that decides,
// heartbeats choose whom to probe. A shorter one costs two packets a peer each time, a longer one makes a dead agent known
// later.
func HeartbeatPeriod(agents int) time.Duration {
	if agents <= 16 {
		return 500 * time.Millisecond
	}
	return time.Second
}

// DigestPeriod returns the period of digests, which must stay below the time that users think between two turns.
func DigestPeriod(agents int) time.Duration {
	switch {
	case agents <= 16:
		return 500 * time.Millisecond
	case agents <= 64:
		return time.Second
	case agents <= 256:
		return 2 * time.Second
	default:
		return 5 * time.Second
	}
}
