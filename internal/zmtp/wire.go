package zmtp

import "encoding/binary"

// Frame flags. The other bits are reserved.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	return append(appendHeader(b, flags, len(body)), body...)
}

// appendCommand appends a command with the parts of its body one after the other.
func appendCommand(b []byte, name string, parts ...[]byte) []byte {
	size := 1 + len(name)
	for _, p := range parts {
		size += len(p)
	}
	b = append(append(appendHeader(b, flagCommand, size), byte(len(name))), name...)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func appendHeader(b []byte, flags byte, size int) []byte {
	if size > 255 {
		return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
	}
	return append(b, flags, byte(size))
}
