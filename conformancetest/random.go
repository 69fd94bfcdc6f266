package conformancetest

var randomRules []rule
