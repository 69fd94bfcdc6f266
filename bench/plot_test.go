package bench

import (
	"fmt"
	"html"
	"math"
	"os"
	"strings"
)

// load tells how busy the machine is, where it can be told.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) >= 3 {
		return "with a load average of " + f[2] + " over the last quarter of an hour, this program's own included"
	}
	return "on a machine whose load is not recorded"
}

// The measures of the plot, in pixels.
const (
	plotLeft, plotWidth = 400, 420
	plotRow, plotHead   = 18, 30
	plotDecades         = 4 // 1 to 10,000 times
)

// plot returns docs/performance.svg: a bar for every ratio, on a logarithmic scale.
func (f *figures) plot() string {
	var b strings.Builder
	y := 20 // below the scale
	x := func(ratio float64) float64 {
		return plotLeft + plotWidth*min(1, max(0, (math.Log10(ratio)+1)/(plotDecades+1)))
	}
	write := func(at float64, y int, anchor, weight, s string) {
		fmt.Fprintf(&b, `<text x="%.0f" y="%d" text-anchor="%s" font-weight="%s">%s</text>`+"\n", at, y, anchor, weight, html.EscapeString(s))
	}
	for _, t := range append(append([]*table{}, f.floors...), f.peers...) {
		write(10, y+20, "start", "bold", t.title)
		y += plotHead
		for i, s := range t.subjects {
			r := t.ratios(i, 0)
			mid := quantile(r, 0.5)
			colour := "#9aa5b1"
			if strings.HasPrefix(s.name, "idem") {
				colour = "#2f6fb3"
			}
			write(plotLeft-8, y+12, "end", "normal", s.name)
			from, to := min(x(1), x(mid)), max(x(1), x(mid))
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="12" fill="%s"/>`+"\n", from, y+2, max(to-from, 1.5), colour)
			fmt.Fprintf(&b, `<path d="M%.1f %dH%.1f" stroke="#000"/>`+"\n", x(quantile(r, 0.25)), y+8, x(quantile(r, 0.75)))
			write(max(to, x(quantile(r, 0.75)))+6, y+12, "start", "normal", number(mid)+" ×")
			y += plotRow
		}
	}
	y += 10
	var lines strings.Builder
	for d := -1; d <= plotDecades; d++ {
		at := x(math.Pow(10, float64(d)))
		fmt.Fprintf(&lines, `<text x="%.1f" y="14" text-anchor="middle">%g ×</text>`+"\n", at, math.Pow(10, float64(d)))
		fmt.Fprintf(&lines, `<path d="M%.1f 18V%d" stroke="%s"/>`+"\n", at, y, map[bool]string{true: "#555", false: "#ddd"}[d == 0])
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<title>Time of one call as a multiple of the first row of its group, logarithmic; the line is the middle half of the rounds</title>
<rect width="100%%" height="100%%" fill="#fff"/>
%s%s</svg>
`, plotLeft+plotWidth+80, y, lines.String(), b.String())
}
