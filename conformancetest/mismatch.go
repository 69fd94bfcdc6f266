package conformancetest

var mismatchRules []rule
