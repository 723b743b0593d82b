#include "tls/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "common/names.h"
#include "tls/openssl.h"

namespace statcollect::tls {
namespace {

constexpr std::size_t kFileBytesMax = 1 << 20;

Status Bad(const std::string& name, const std::string& path, const std::string& found,
           const std::string& next) {
  return {Code::kInvalidArgument,
          "TLS: " + name + " '" + Printable(path) + "': " + found + "; " + next};
}

Result<std::string> ReadFile(const std::string& name, const std::string& path) {
  const auto failed = [&] {
    return Bad(name, path, "cannot be read: " + std::generic_category().message(errno),
               "expected a PEM file that this user may read; check its path and permissions");
  };
  const int descriptor =
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (descriptor < 0) return failed();
  std::string text(kFileBytesMax + 1, '\0');
  std::size_t size = 0;
  ssize_t got = 0;
  while (size < text.size() && (got = read(descriptor, text.data() + size, text.size() - size)) > 0)
    size += static_cast<std::size_t>(got);
  const int error = errno;
  close(descriptor);
  errno = error;
  if (got < 0) return failed();
  text.resize(size);
  if (size > kFileBytesMax) return Bad(name, path, "is larger than 1 MiB", "expected a PEM file");
  return text;
}

Status CheckDates(const std::string& name, const std::string& path, const X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0)
    return Bad(name, path,
               "the certificate expired on " + TimeText(X509_get0_notAfter(&certificate)),
               "expected one that is valid now; put a new one there");
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0)
    return Bad(name, path,
               "the certificate is not valid before " + TimeText(X509_get0_notBefore(&certificate)),
               "expected one that is valid now; check this machine's clock");
  return Status::Ok();
}

Status CheckPair(const Files& files, const Names& names, const Material& material) {
  const auto chain = ReadCertificates(material.certificate);
  if (chain.empty())
    return Bad(names.certificate, files.certificate, "has no readable certificate",
               "expected PEM text that begins with -----BEGIN CERTIFICATE-----");
  STATCOLLECT_RETURN_IF_ERROR(CheckDates(names.certificate, files.certificate, *chain.front()));
  const KeyPointer key = ReadKey(material.key);
  if (!key)
    return Bad(
        names.key, files.key, "has no readable private key",
        "expected PEM text that begins with -----BEGIN PRIVATE KEY-----, without a passphrase");
  const bool matches = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (matches) return Status::Ok();
  return Bad(names.key, files.key,
             "is not the key of the certificate in '" + Printable(files.certificate) + "'",
             "expected the key that this certificate was made for; give the two files that belong "
             "together");
}

}  // namespace

Result<Material> Load(const Files& files, const Names& names) {
  if (files.certificate.empty() != files.key.empty()) {
    const bool lacks_key = files.key.empty();
    return Status(Code::kInvalidArgument, "TLS: " + (lacks_key ? names.certificate : names.key) +
                                              " is given without " +
                                              (lacks_key ? names.key : names.certificate) +
                                              "; expected both or neither; add the missing file");
  }
  Material material;
  for (const auto& [name, path, text] :
       {std::tuple{&names.certificate, &files.certificate, &material.certificate},
        std::tuple{&names.key, &files.key, &material.key},
        std::tuple{&names.authorities, &files.authorities, &material.authorities}}) {
    if (path->empty()) continue;
    auto read = ReadFile(*name, *path);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  if (!files.certificate.empty()) STATCOLLECT_RETURN_IF_ERROR(CheckPair(files, names, material));
  if (!files.authorities.empty() && ReadCertificates(material.authorities).empty())
    return Bad(names.authorities, files.authorities, "has no readable certificate",
               "expected certificate authorities as PEM text that begins with -----BEGIN "
               "CERTIFICATE-----");
  return material;
}

bool IsFor(const Material& material, const std::string& name) {
  const auto certificates = ReadCertificates(material.certificate);
  return !certificates.empty() &&
         X509_check_host(certificates.front().get(), name.data(), name.size(), 0, nullptr) == 1;
}

Status ReplaceFile(const std::string& path, const std::string& text, unsigned mode) {
  const auto failed = [](const std::string& file) {
    return Status(Code::kInternal, "write '" + Printable(file) +
                                       "': " + std::generic_category().message(errno) +
                                       "; expected a folder that this user may write to");
  };
  const std::string fresh = path + ".new";
  (void)unlink(fresh.c_str());
  const int descriptor =
      open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (descriptor < 0) return failed(fresh);
  const bool written =
      fchmod(descriptor, mode) == 0 &&
      write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(descriptor) == 0;
  close(descriptor);
  return written && std::rename(fresh.c_str(), path.c_str()) == 0 ? Status::Ok() : failed(path);
}

}  // namespace statcollect::tls
