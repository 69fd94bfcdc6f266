package conformancetest

var listRules []rule
