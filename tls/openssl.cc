#include "tls/openssl.h"

#include <arpa/inet.h>

#include <array>

#include <openssl/err.h>
#include <openssl/pem.h>

namespace statcollect::tls {
namespace {

BioPointer Reading(const std::string& text) {
  return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

int NoPassphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::vector<CertificatePointer> ReadCertificates(const std::string& pem) {
  std::vector<CertificatePointer> read;
  const BioPointer bio = Reading(pem);
  while (CertificatePointer one{PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)})
    read.push_back(std::move(one));
  // The end of the text is "no start line"; anything else is a damaged certificate.
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) read.clear();
  ERR_clear_error();
  return read;
}

KeyPointer ReadKey(const std::string& pem) {
  const BioPointer bio = Reading(pem);
  KeyPointer key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  return key;
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, 16> bytes{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

std::string TimeText(const ASN1_TIME* time) {
  const BioPointer bio(BIO_new(BIO_s_mem()));
  if (ASN1_TIME_print(bio.get(), time) != 1) return "an unreadable date";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

}  // namespace statcollect::tls
