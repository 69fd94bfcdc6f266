package conformancetest

var guaranteesRules []rule
