package conformancetest

var paramsRules []rule
