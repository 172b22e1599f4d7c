package kvevents

import "testing"

func BenchmarkDecode(b *testing.B) {
	for _, tt := range []struct {
		name    string
		payload []byte
		events  int
	}{
		{"sglang page of 1", batchOf(512, sglangStored(1)), 512},
		{"sglang page of 16", batchOf(512, sglangStored(16)), 512},
		{"vllm map block of 16", batchOf(512, vllmStored(16)), 512},
		{"removed", batchOf(512, sglangRemoved()), 512},
	} {
		b.Run(tt.name, func(b *testing.B) {
			var d Decoder
			var batch Batch
			b.ReportAllocs()
			b.SetBytes(int64(len(tt.payload)))
			for b.Loop() {
				if err := d.Decode(tt.payload, &batch); err != nil || len(batch.Events) != tt.events {
					b.Fatal(err, len(batch.Events))
				}
			}
			b.ReportMetric(float64(tt.events)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mevents/s")
		})
	}
}
