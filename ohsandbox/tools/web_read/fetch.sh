# Fetches $1 with what the sandbox has, and says on stderr with what. Of curl and Python the headers come on stdout
# before the body, of wget on stderr. Arguments: url, seconds to wait for a connection, redirects, user agent.
accept='Accept: text/html,application/xhtml+xml,text/markdown;q=0.9,text/plain;q=0.8,*/*;q=0.5'
if command -v curl >/dev/null 2>&1; then
  echo 'fetched with: curl' >&2
  exec curl -q --globoff --silent --show-error --include --location --max-redirs "$3" --connect-timeout "$2" \
    --proto =http,https --proto-redir =http,https --suppress-connect-headers \
    --user-agent "$4" --header "$accept" --output - -- "$1"
elif command -v python3 >/dev/null 2>&1; then
  echo 'fetched with: python3' >&2
  exec python3 -I -c '
import sys, urllib.error, urllib.request as r
url, wait_s, redirects, agent, accept = sys.argv[1:]
out = sys.stdout.buffer
def head(status, reason, headers):
    out.write(("HTTP/1.1 %s %s\r\n%s\r\n\r\n" % (status, reason, str(headers).strip())).encode("utf-8", "replace"))
class Redirects(r.HTTPRedirectHandler):
    max_redirections = int(redirects)
    def redirect_request(self, request, file, status, reason, headers, url):
        head(status, reason, headers)
        return super().redirect_request(request, file, status, reason, headers, url)
opener = r.OpenerDirector()
for handler in (r.ProxyHandler, r.HTTPHandler, r.HTTPSHandler, r.HTTPDefaultErrorHandler, Redirects, r.HTTPErrorProcessor):
    opener.add_handler(handler())
opener.addheaders = [("User-Agent", agent), tuple(accept.split(": ", 1))]
try:
    try:
        answer = opener.open(url, timeout=float(wait_s))
    except urllib.error.HTTPError as error:
        answer = error
    if answer is None:
        sys.exit("redirected to an address that is neither http nor https")
    head(answer.status, answer.reason, answer.headers)
    while data := answer.read1(65536):
        out.write(data)
        out.flush()
    if getattr(answer, "length", 0):
        sys.exit("%d bytes did not come" % answer.length)
except Exception as error:
    sys.exit("%s: %s" % (type(error).__name__, getattr(error, "reason", error)))
' "$1" "$2" "$3" "$4" "$accept"
elif wget --version 2>/dev/null | grep -q GNU; then
  echo 'fetched with: wget' >&2
  # wget 1.21 takes the connection of an HTTP/1.0 answer for a kept one. If it follows a redirect before the server has
  # closed that connection, it gives up: "No data received".
  exec wget --quiet --server-response --output-document=- --max-redirect="$3" --tries=1 --timeout="$2" \
    --no-http-keep-alive \
    ${SSL_CERT_FILE:+"--ca-certificate=$SSL_CERT_FILE"} --user-agent="$4" --header="$accept" --content-on-error -- "$1"
elif command -v wget >/dev/null 2>&1; then
  echo 'fetched with: busybox' >&2
  exec wget -q -S -O - -T "$2" -U "$4" --header "$accept" "$1"
fi
echo 'fetched with: nothing' >&2
exit 127
