// The certificate files of a TLS server or client, read and checked before anybody uses them.
#ifndef STATCOLLECT_TLS_FILES_H_
#define STATCOLLECT_TLS_FILES_H_

#include <string>

#include "common/status.h"

namespace statcollect::tls {

// Paths of PEM files; empty: none.
struct Files {
  std::string certificate;  // the own chain, leaf first
  std::string key;          // of the leaf, without a passphrase
  std::string authorities;  // who may have signed the peer's certificate
};

// Their contents; empty where there is no file.
struct Material {
  std::string certificate, key, authorities;
  bool operator==(const Material&) const = default;
};

// Names of the files in messages: "--tls-cert" or "STATAGENT_TLS_CERT", say.
struct Names {
  std::string certificate, key, authorities;
};

// kInvalidArgument: a file is missing, unreadable, larger than 1 MiB or not PEM; a certificate has
// expired or is not valid yet; the key is not that of the certificate; one of certificate and key
// without the other. The message names the file and the next step. Reads three small files;
// thread-safe.
Result<Material> Load(const Files& files, const Names& names);

// Whether the certificate is for this name, which may match a wildcard in it. Thread-safe; tens of
// microseconds.
bool IsFor(const Material& material, const std::string& name);

// Writes a new file that takes the place of the old one at once, so that nobody reads half of it.
// kInternal.
Status ReplaceFile(const std::string& path, const std::string& text, unsigned mode);

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_FILES_H_
