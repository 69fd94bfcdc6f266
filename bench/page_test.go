package bench

import (
	"fmt"
	"strconv"
	"strings"
)

// number writes a figure with three digits that count.
func number(v float64) string {
	switch {
	case v >= 99.5:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func count(v float64) string {
	if v == unknown {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// text returns the tables in Markdown.
func text(all []*table) string {
	var b strings.Builder
	for _, t := range all {
		b.WriteString(t.markdown())
	}
	return b.String()
}

func (t *table) markdown() string {
	var b strings.Builder
	withCost := t.subjects[0].cost != nil
	fmt.Fprintf(&b, "### %s\n\n| | µs | ratio | middle half |", t.title)
	if withCost {
		b.WriteString(" round trips | flushes |")
	}
	b.WriteString("\n| --- | ---: | ---: | ---: |")
	if withCost {
		b.WriteString(" ---: | ---: |")
	}
	b.WriteByte('\n')
	for i, s := range t.subjects {
		r := t.ratios(i, 0)
		fmt.Fprintf(&b, "| %s | %s | %s | %s–%s |", s.name, number(t.time(i)), number(quantile(r, 0.5)), number(quantile(r, 0.25)), number(quantile(r, 0.75)))
		if withCost {
			c := s.cost
			if c == nil {
				c = &cost{unknown, unknown}
			}
			fmt.Fprintf(&b, " %s | %s |", count(c.trips), count(c.flushes))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.String()
}
