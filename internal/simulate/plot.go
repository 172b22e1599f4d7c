package simulate

import (
	"fmt"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The size of a drawing: two pictures side by side, readable in a browser's window.
const (
	plotWidth  = 26 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
	plotSplit  = 0.64 // share of the width that the distributions take
	plotPoints = 200  // of a curve
	plotBar    = 12 * vg.Millimeter
)

// WritePlot draws results as SVG: how the times to first token are distributed, and the hit ratio of each policy.
func WritePlot(out io.Writer, results []Result) error {
	times, err := plotTimes(results)
	if err != nil {
		return fmt.Errorf("plot times to first token: %w", err)
	}
	hits, err := plotHits(results)
	if err != nil {
		return fmt.Errorf("plot hit ratios: %w", err)
	}
	canvas := vgsvg.New(plotWidth, plotHeight)
	whole := draw.New(canvas)
	times.Draw(draw.Crop(whole, 0, -plotWidth*(1-plotSplit), 0, 0))
	hits.Draw(draw.Crop(whole, plotWidth*plotSplit, 0, 0, 0))
	_, err = canvas.WriteTo(out)
	return err
}

// plotTimes draws for each policy which share of the requests had their first token by when.
func plotTimes(results []Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "share of requests with a first token within"
	p.X.Label.Text, p.Y.Label.Text = "seconds", "share"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Left, p.Legend.Top = true, true
	for i := range results {
		r := &results[i]
		var curve plotter.XYs
		for k := range plotPoints {
			q := (float64(k) + 0.5) / plotPoints
			curve = append(curve, plotter.XY{X: math.Max(quantile(r.TTFT, q), 1e-3), Y: q})
		}
		line, err := plotter.NewLine(curve)
		if err != nil {
			return nil, err
		}
		line.Color, line.Dashes, line.Width = plotutil.Color(i), plotutil.Dashes(i/len(plotutil.DefaultColors)), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(r.Policy, line)
	}
	return p, nil
}

// plotHits draws the hit ratio of each policy as a bar.
func plotHits(results []Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "prompt tokens from cache"
	p.Y.Label.Text = "share"
	p.Y.Min = 0
	var names []string
	width := min(plotBar, plotWidth*(1-plotSplit)/vg.Length(2*len(results)+1))
	for i := range results {
		bar, err := plotter.NewBarChart(plotter.Values{results[i].HitRatio}, width)
		if err != nil {
			return nil, err
		}
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), plotutil.Color(i), 0
		p.Add(bar)
		names = append(names, results[i].Policy)
	}
	p.NominalX(names...)
	p.X.Tick.Label.Rotation = math.Pi / 3
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YCenter
	return p, nil
}
