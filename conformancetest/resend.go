package conformancetest

var resendRules []rule
