package conformancetest

var purgeRules []rule
