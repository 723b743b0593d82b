// The TLS settings of HTTPS connections, rebuilt when the certificates change.
#ifndef STATCOLLECT_SERVER_HTTP_TLS_CONTEXTS_H_
#define STATCOLLECT_SERVER_HTTP_TLS_CONTEXTS_H_

#include <memory>

#include <boost/asio/ssl/context.hpp>

#include "common/thread_annotations.h"
#include "tls/reloader.h"

namespace statcollect {

// Thread-safe. TLS 1.3, or 1.2 if allowed, without renegotiation and compression; with authorities,
// clients need a certificate.
class TlsContexts {
 public:
  // `certificates` outlives it.
  TlsContexts(const tls::Reloader& certificates, bool allow_tls_1_2)
      : certificates_(certificates), allow_tls_1_2_(allow_tls_1_2) {}

  // For one connection. Null if OpenSSL does not take the certificates, which were checked when
  // they were read.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  const tls::Reloader& certificates_;
  const bool allow_tls_1_2_;
  Mutex mutex_;
  std::shared_ptr<const tls::Material> of_ STATCOLLECT_GUARDED_BY(mutex_);
  std::shared_ptr<boost::asio::ssl::context> current_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_TLS_CONTEXTS_H_
