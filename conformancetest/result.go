package conformancetest

var resultRules []rule
