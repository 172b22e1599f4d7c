"""The other side of the interop check: the sockets of a vLLM that publishes KV events, on real libzmq.

It obeys lines on standard input and answers each with a line that begins with "ok".
  send N       publish N batches, each with one new block
  lose N       number and keep N batches, but do not publish them
  flood N      send, without looking at replay requests in between
  idle         do nothing
Between commands, and while it waits, it serves replay as vLLM's publisher thread does.
"""

import argparse
import collections
import select
import struct
import sys
import time

import zmq

END = b"\xff" * 8


def batch(block, tokens):
    """A batch of vLLM 0.10.2 with one stored block, on the GPU, of rank 0."""
    size = b"\xcd" + struct.pack(">H", tokens)
    return b"".join(
        [
            b"\x93\xcb",
            struct.pack(">d", time.time()),
            b"\x91\x97\xabBlockStored\x91\xcf",
            struct.pack(">Q", block),
            b"\xc0\xdc",
            struct.pack(">H", tokens),
            b"\xce\x00\x01\x02\x03" * tokens,
            size,
            b"\xc0\xa3GPU\x00",
        ]
    )


class Engine:
    def __init__(self, args):
        self.topic, self.replay_topic = args.topic.encode(), args.replay_topic
        self.life = int(time.time() * 1000) & 0xFFFFFFFF
        self.next, self.tokens = 0, args.tokens
        self.kept = collections.deque(maxlen=args.buffer)
        context = zmq.Context()
        self.pub, self.replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for s in (self.pub, self.replay):
            s.setsockopt(zmq.IPV6, 1)
            s.setsockopt(zmq.LINGER, 0)
            if args.heartbeat:
                s.setsockopt(zmq.HEARTBEAT_IVL, args.heartbeat)
                s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * args.heartbeat)
                s.setsockopt(zmq.HEARTBEAT_TTL, 4 * args.heartbeat)
        self.pub.set_hwm(args.hwm)
        if args.connect:
            self.pub.connect(args.pub)
        else:
            self.pub.bind(args.pub)
        self.replay.bind(args.replay)

    def endpoints(self):
        return [s.getsockopt_string(zmq.LAST_ENDPOINT) for s in (self.pub, self.replay)]

    def publish(self, lost=False):
        seq = struct.pack(">Q", self.next)
        payload = batch(self.life << 32 | self.next + 1, self.tokens)
        self.next += 1
        if not lost:
            self.pub.send_multipart((self.topic, seq, payload))
        self.kept.append((seq, payload))

    def serve_replay(self):
        while self.replay.poll(0):
            frames = self.replay.recv_multipart()
            if len(frames) != 3:
                print("replay request of %d frames" % len(frames), file=sys.stderr)
                continue
            client, _, start = frames
            topic = (self.topic,) if self.replay_topic else ()
            for seq, payload in self.kept:
                if seq >= start:
                    self.replay.send_multipart((client, b"", *topic, seq, payload))
            topic = (b"",) if self.replay_topic else ()
            self.replay.send_multipart((client, b"", *topic, END, b""))

    def obey(self, line):
        word, n = (line.split() + ["0"])[:2]
        for _ in range(int(n)):
            self.publish(lost=word == "lose")
            if word != "flood":
                self.serve_replay()
        print("ok", self.life, self.next, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pub", default="tcp://127.0.0.1:*")
    p.add_argument("--replay", default="tcp://127.0.0.1:*")
    p.add_argument("--connect", action="store_true")
    p.add_argument("--topic", default="kv@engine@model")
    p.add_argument("--replay-topic", action="store_true")
    p.add_argument("--buffer", type=int, default=10000)
    p.add_argument("--hwm", type=int, default=100000)
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--heartbeat", type=int, default=0)
    engine = Engine(p.parse_args())
    print("ok", zmq.zmq_version(), *engine.endpoints(), flush=True)
    while True:
        engine.serve_replay()
        readable, _, _ = select.select([sys.stdin], [], [], 0.01)
        if readable:
            line = sys.stdin.readline()
            if not line:
                return
            engine.obey(line)


main()
