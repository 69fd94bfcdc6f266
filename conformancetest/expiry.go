package conformancetest

var expiryRules []rule
