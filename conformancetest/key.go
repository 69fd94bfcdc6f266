package conformancetest

var keyRules []rule
