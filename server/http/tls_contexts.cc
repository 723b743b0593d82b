#include "server/http/tls_contexts.h"

#include <array>
#include <string_view>

#include <boost/asio/buffer.hpp>

namespace statcollect {
namespace {

namespace ssl = boost::asio::ssl;

// HTTP/1.1 is all that the server speaks; clients that ask for others get no answer to that
// question.
int SelectProtocol(SSL*, const unsigned char** chosen, unsigned char* size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  constexpr std::string_view kHttp1 = "\x08http/1.1";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, size, reinterpret_cast<const unsigned char*>(kHttp1.data()),
                            kHttp1.size(), offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

std::shared_ptr<ssl::context> Make(const tls::Material& material, bool allow_tls_1_2) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, allow_tls_1_2 ? TLS1_2_VERSION : TLS1_3_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_alpn_select_cb(native, SelectProtocol, nullptr);
  static constexpr std::array<unsigned char, 4> kSessions = {'s', 't', 'a', 't'};
  SSL_CTX_set_session_id_context(native, kSessions.data(), kSessions.size());
  boost::system::error_code error;
  context->use_certificate_chain(boost::asio::buffer(material.certificate), error);
  if (!error) context->use_private_key(boost::asio::buffer(material.key), ssl::context::pem, error);
  if (!error && !material.authorities.empty()) {
    context->add_certificate_authority(boost::asio::buffer(material.authorities), error);
    if (!error)
      context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  }
  return error ? nullptr : context;
}

}  // namespace

std::shared_ptr<ssl::context> TlsContexts::Current() {
  MutexLock lock(mutex_);
  const auto now = certificates_.current();
  if (now != of_) {
    current_ = Make(*now, allow_tls_1_2_);
    of_ = now;
  }
  return current_;
}

}  // namespace statcollect
