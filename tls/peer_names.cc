#include "tls/peer_names.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <memory>

#include <openssl/x509v3.h>

#include "tls/openssl.h"

namespace statcollect::tls {
namespace {

std::string TextOf(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<std::size_t>(ASN1_STRING_length(string))};
}

std::string AddressOf(const ASN1_OCTET_STRING* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int size = ASN1_STRING_length(bytes);
  if (size != 4 && size != 16) return {};
  const char* made = inet_ntop(size == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(bytes),
                               text.data(), text.size());
  return made == nullptr ? "" : made;
}

std::string NameOf(const GENERAL_NAME& name) {
  switch (name.type) {
    case GEN_DNS:
      return TextOf(name.d.dNSName);
    case GEN_EMAIL:
      return TextOf(name.d.rfc822Name);
    case GEN_URI:
      return TextOf(name.d.uniformResourceIdentifier);
    case GEN_IPADD:
      return AddressOf(name.d.iPAddress);
    default:
      return {};
  }
}

// "rank7\0.other" must not pass for rank7.
bool IsPlain(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::vector<std::string> NamesOf(const X509* certificate) {
  using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;
  std::vector<std::string> names;
  const Names found(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(found.get()); ++i)
    names.push_back(NameOf(*sk_GENERAL_NAME_value(found.get(), i)));
  if (found == nullptr) {
    const X509_NAME* subject = X509_get_subject_name(certificate);
    const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (at >= 0)
      names.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  }
  std::erase_if(names, [](const std::string& name) { return !IsPlain(name); });
  return names;
}

std::vector<std::string> PeerNames(const SSL* connection) {
  const CertificatePointer certificate(SSL_get1_peer_certificate(connection));
  const bool verified = SSL_get_verify_mode(connection) != SSL_VERIFY_NONE &&
                        SSL_get_verify_result(connection) == X509_V_OK;
  return certificate != nullptr && verified ? NamesOf(certificate.get())
                                            : std::vector<std::string>();
}

}  // namespace statcollect::tls
