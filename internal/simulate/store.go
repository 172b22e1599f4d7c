package simulate

// store keeps what is under way, so that events can name it by a number.
type store[T any] struct {
	all  []T
	free []int32
}

func (s *store[T]) put(v T) int32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.all[i] = v
		return i
	}
	s.all = append(s.all, v)
	return int32(len(s.all) - 1)
}

// take returns what has the number, which is free then.
func (s *store[T]) take(i int32) T {
	var none T
	v := s.all[i]
	s.all[i] = none
	s.free = append(s.free, i)
	return v
}
