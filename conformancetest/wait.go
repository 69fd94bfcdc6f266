package conformancetest

var waitRules []rule
