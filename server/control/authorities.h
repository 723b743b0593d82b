// Whom an https webhook is trusted by, where no file of authorities is configured.
#ifndef STATCOLLECT_SERVER_CONTROL_AUTHORITIES_H_
#define STATCOLLECT_SERVER_CONTROL_AUTHORITIES_H_

#include <span>
#include <string>

namespace statcollect {

// The first of the files that exists, or "".
std::string FirstFile(std::span<const std::string> files);

// The PEM file of the authorities that this system trusts; "": no file was found, and libcurl's own
// default applies. SSL_CERT_FILE wins. A libcurl that came in a wheel or bundle was built on
// Debian; other distributions keep the file elsewhere.
std::string SystemAuthorities();

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_AUTHORITIES_H_
