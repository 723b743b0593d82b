#include "server/daemon/grpc_tls.h"

#include <cstdlib>
#include <string>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

// grpc::SslServerCredentials has fixed certificates; what it wraps can also ask for them at each
// handshake.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(const tls::Reloader& certificates) : certificates_(certificates) {
    const auto ask = certificates.current()->authorities.empty()
                         ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                         : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(ask, &TlsCredentials::Fetch,
                                                                        this));
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // From gRPC's threads, before each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<TlsCredentials*>(self)->Fetch(config);
  }
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    MutexLock lock(mutex_);
    const auto now = certificates_.current();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{.private_key = now->key.c_str(),
                                          .cert_chain = now->certificate.c_str()};
    // gRPC aborts without authorities, though it reads them only if clients are asked for a
    // certificate.
    const std::string& roots = now->authorities.empty() ? now->certificate : now->authorities;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    if (*config == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    given_ = now;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const tls::Reloader& certificates_;
  grpc_server_credentials* credentials_ = nullptr;
  Mutex mutex_;
  std::shared_ptr<const tls::Material> given_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace

void RequireTls13() {
  // Concerns only TLS 1.2 and lower, whose only cipher is then one that nobody can use: it needs a
  // shared key.
  setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
}

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const tls::Reloader& certificates) {
  return std::make_shared<TlsCredentials>(certificates);
}

}  // namespace statcollect
