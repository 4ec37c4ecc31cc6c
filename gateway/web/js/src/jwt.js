/** Return the claims of a JWT; no claims if the text is not a JWT. */
function parseClaims(jwt) {
  try {
    return JSON.parse(atob(jwt.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return {};
  }
}

/**
 * Return when a JWT expires.
 *
 * @param {string | undefined} jwt
 * @returns {number} Milliseconds since 1970; Infinity if it does not expire.
 */
export function getExpiry(jwt) {
  return (parseClaims(jwt).exp ?? Infinity) * 1000;
}

/**
 * Return who a JWT speaks for: the part that stays the same when the token is renewed.
 *
 * Tabs of different identities must not share a socket.
 *
 * @param {string | undefined} jwt
 * @returns {string} Equal texts mean the same identity; "" without a token.
 */
export function getIdentity(jwt) {
  if (!jwt) return "";
  const { exp, iat, nbf, jti, ...identifying } = parseClaims(jwt);
  return Object.keys(identifying).length ? JSON.stringify(identifying) : jwt;
}
