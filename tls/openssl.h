// Owners of OpenSSL's objects.
#ifndef STATCOLLECT_TLS_OPENSSL_H_
#define STATCOLLECT_TLS_OPENSSL_H_

#include <memory>
#include <string>
#include <vector>

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace statcollect::tls {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using BioPointer = std::unique_ptr<BIO, Free<BIO_free_all>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using CertificatePointer = std::unique_ptr<X509, Free<X509_free>>;
using ContextPointer = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using SessionPointer = std::unique_ptr<SSL, Free<SSL_free>>;

// Of PEM text. Empty, or null, if there is none that can be read; the thread's error queue is empty
// afterwards.
std::vector<CertificatePointer> ReadCertificates(const std::string& pem);
KeyPointer ReadKey(const std::string& pem);  // one that needs a passphrase is not read

// Of IPv4 or IPv6, without brackets; otherwise a host is a name.
bool IsAddress(const std::string& host);

// "Nov 23 18:00:00 2026 GMT"
std::string TimeText(const ASN1_TIME* time);

}  // namespace statcollect::tls

#endif  // STATCOLLECT_TLS_OPENSSL_H_
