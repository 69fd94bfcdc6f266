package conformancetest

var reopenRules []rule
