package conformancetest

var cancelRules []rule
