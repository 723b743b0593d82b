#include "tls/authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <system_error>

#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "common/names.h"
#include "tls/files.h"
#include "tls/openssl.h"

namespace statcollect::tls {
namespace {

constexpr std::chrono::hours kAuthorityValid{24 * 3650};
constexpr std::chrono::hours kClockSkew{24};  // a certificate is valid from a day ago on
const Names kNames{
    .certificate = "the certificate", .key = "the key", .authorities = "the authority"};

struct Signed {
  CertificatePointer certificate;
  KeyPointer key;
};

Status Failed(const std::string& attempted) {
  return {Code::kInternal,
          "make certificates: " + attempted + " failed in OpenSSL; check its installation"};
}

bool IsHost(const std::string& host) {
  if (IsAddress(host)) return true;
  return !host.empty() && host.size() <= 253 && host.front() != '-' && host.front() != '.' &&
         std::all_of(host.begin(), host.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '.' || c == '*' || c == '_';
         });
}

bool AddExtension(X509* to, X509* issuer, int which, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> made(
      X509V3_EXT_conf_nid(nullptr, &context, which, value.c_str()));
  return made && X509_add_ext(to, made.get(), -1) == 1;
}

bool SetSerial(X509* certificate) {
  std::array<unsigned char, 16> random{};
  if (RAND_bytes(random.data(), random.size()) != 1) return false;
  random[0] &= 0x7f;
  const std::unique_ptr<BIGNUM, Free<BN_free>> number(
      BN_bin2bn(random.data(), random.size(), nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

struct Wanted {
  std::string name;
  std::chrono::hours valid;
  std::vector<std::pair<int, std::string>> extensions;
};

// Signed by `authority`, or by itself if that is null.
Result<Signed> Make(const Wanted& wanted, const Signed* authority) {
  Signed made{.certificate = CertificatePointer(X509_new()),
              .key = KeyPointer(EVP_EC_gen("P-256"))};
  X509* const certificate = made.certificate.get();
  if (certificate == nullptr || !made.key) return Failed("a new key");
  X509* const issuer = authority != nullptr ? authority->certificate.get() : certificate;
  const auto seconds = [](std::chrono::hours time) {
    return static_cast<long>(std::chrono::seconds(time).count());
  };
  bool good = X509_set_version(certificate, 2) == 1 && SetSerial(certificate) &&
              X509_gmtime_adj(X509_getm_notBefore(certificate), -seconds(kClockSkew)) != nullptr &&
              X509_gmtime_adj(X509_getm_notAfter(certificate), seconds(wanted.valid)) != nullptr &&
              X509_set_pubkey(certificate, made.key.get()) == 1 &&
              X509_NAME_add_entry_by_txt(
                  X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                  reinterpret_cast<const unsigned char*>(wanted.name.c_str()), -1, -1, 0) == 1 &&
              X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1;
  for (const auto& [which, value] : wanted.extensions)
    good = good && AddExtension(certificate, issuer, which, value);
  good = good && AddExtension(certificate, issuer, NID_subject_key_identifier, "hash");
  if (authority != nullptr)
    good = good && AddExtension(certificate, issuer, NID_authority_key_identifier, "keyid:always");
  EVP_PKEY* const signer = authority != nullptr ? authority->key.get() : made.key.get();
  if (!good || X509_sign(certificate, signer, EVP_sha256()) == 0)
    return Failed("a new certificate");
  return made;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

Status Write(const Signed& made, const std::string& certificate, const std::string& key) {
  const BioPointer pem(BIO_new(BIO_s_mem())), secret(BIO_new(BIO_s_mem()));
  if (!pem || !secret || PEM_write_bio_X509(pem.get(), made.certificate.get()) != 1 ||
      PEM_write_bio_PrivateKey(secret.get(), made.key.get(), nullptr, nullptr, 0, nullptr,
                               nullptr) != 1)
    return Failed("writing PEM");
  STATCOLLECT_RETURN_IF_ERROR(ReplaceFile(key, Text(secret.get()), 0600));
  return ReplaceFile(certificate, Text(pem.get()), 0644);
}

// The one of the folder, or a new one.
Result<Signed> Authority(const AuthorityFiles& files) {
  if (access(files.ca.c_str(), F_OK) != 0 && access(files.ca_key.c_str(), F_OK) != 0) {
    auto made = Make({.name = "statcollect private authority",
                      .valid = kAuthorityValid,
                      .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                     {NID_key_usage, "critical,keyCertSign,cRLSign"}}},
                     nullptr);
    if (made.ok()) STATCOLLECT_RETURN_IF_ERROR(Write(*made, files.ca, files.ca_key));
    return made;
  }
  const auto read = Load({.certificate = files.ca, .key = files.ca_key, .authorities = {}}, kNames);
  if (!read.ok()) return read.status();
  auto chain = ReadCertificates(read->certificate);
  return Signed{.certificate = std::move(chain.front()), .key = ReadKey(read->key)};
}

std::string AlternativeNames(const std::vector<std::string>& hosts) {
  std::string text;
  for (const std::string& host : hosts)
    text += (text.empty() ? "" : ",") + std::string(IsAddress(host) ? "IP:" : "DNS:") + host;
  return text;
}

}  // namespace

AuthorityFiles FilesIn(const std::string& directory) {
  const auto in = [&](const char* name) { return directory + "/" + name; };
  return {.ca = in("ca.pem"),
          .ca_key = in("ca.key"),
          .certificate = in("server.pem"),
          .key = in("server.key"),
          .client_certificate = in("client.pem"),
          .client_key = in("client.key")};
}

Status MakeCertificates(const std::string& directory, const AuthorityOptions& options) {
  if (options.hosts.empty())
    return {Code::kInvalidArgument,
            "make certificates: found no host; expected the names that clients use"};
  for (const std::string& host : options.hosts) {
    if (!IsHost(host))
      return {Code::kInvalidArgument,
              "make certificates: '" + Printable(host) +
                  "' is not a host; expected a name or an address such as gpu7.example.org "
                  "or 10.0.0.7, without a port"};
  }
  const mode_t before = umask(077);
  const bool made = mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST;
  umask(before);
  if (!made)
    return {Code::kInternal, "make certificates: make the folder '" + Printable(directory) +
                                 "': " + std::generic_category().message(errno) +
                                 "; expected a place that this user may write to"};
  const AuthorityFiles files = FilesIn(directory);
  const auto authority = Authority(files);
  if (!authority.ok()) return authority.status();
  const std::pair<int, std::string> leaf{NID_basic_constraints, "critical,CA:FALSE"};
  const std::pair<int, std::string> use{NID_key_usage, "critical,digitalSignature"};
  const auto server =
      Make({.name = "statcollectord",
            .valid = options.valid,
            .extensions = {leaf,
                           use,
                           {NID_ext_key_usage, "serverAuth"},
                           {NID_subject_alt_name, AlternativeNames(options.hosts)}}},
           &*authority);
  if (!server.ok()) return server.status();
  const auto client = Make({.name = "statcollect client",
                            .valid = options.valid,
                            .extensions = {leaf, use, {NID_ext_key_usage, "clientAuth"}}},
                           &*authority);
  if (!client.ok()) return client.status();
  STATCOLLECT_RETURN_IF_ERROR(Write(*server, files.certificate, files.key));
  return Write(*client, files.client_certificate, files.client_key);
}

std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts{"localhost", "127.0.0.1", "::1"};
  const auto add = [&hosts](const std::string& host) {
    if (IsHost(host) && std::find(hosts.begin(), hosts.end(), host) == hosts.end())
      hosts.push_back(host);
  };
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) add(name.data());
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return hosts;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (one->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
                text.size());
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address))
        continue;  // needs a scope, which a certificate cannot have
      inet_ntop(AF_INET6, &address, text.data(), text.size());
    } else {
      continue;
    }
    add(text.data());
  }
  return hosts;
}

}  // namespace statcollect::tls
