#include "tls/probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "common/names.h"
#include "common/parse.h"
#include "tls/openssl.h"

namespace statcollect::tls {
namespace {

using Clock = std::chrono::steady_clock;

// A connected socket; every wait ends at the deadline.
class Connection {
 public:
  Connection(const HostPort& to, Clock::time_point deadline) : deadline_(deadline) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found) != 0) return;
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
    for (const addrinfo* one = found; one != nullptr && fd_ < 0; one = one->ai_next) Try(*one);
  }
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool Send(const char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t sent = send(fd_, data, size, MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN && Await(POLLOUT)) continue;
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<std::size_t>(sent);
    }
    return true;
  }
  // 0: closed, reset, or nothing until the deadline (which sets `silent`).
  std::size_t Receive(std::array<char, 16384>& into) {
    if (!Await(POLLIN)) {
      silent_ = true;
      return 0;
    }
    const ssize_t got = recv(fd_, into.data(), into.size(), 0);
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  bool silent() const { return silent_; }

 private:
  void Try(const addrinfo& to) {
    fd_ = socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to.ai_protocol);
    if (fd_ < 0) return;
    if (connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return;
    int error = errno;
    socklen_t size = sizeof error;
    if (error == EINPROGRESS && Await(POLLOUT))
      getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) Close();
  }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  bool Await(short what) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd ready{.fd = fd_, .events = what, .revents = 0};
    return left > 0 && poll(&ready, 1, static_cast<int>(left)) > 0;
  }

  const Clock::time_point deadline_;
  int fd_ = -1;
  bool silent_ = false;
};

// The names and addresses that a certificate is for, as "localhost, 127.0.0.1".
std::string NamesOf(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string text;
  const auto add = [&text](const std::string& name) { text += (text.empty() ? "" : ", ") + name; };
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      add(Printable(
          std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                      static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)))));
    } else if (name->type == GEN_IPADD) {
      std::array<char, INET6_ADDRSTRLEN> shown{};
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), shown.data(), shown.size()) !=
          nullptr)
        add(shown.data());
    }
  }
  return text.empty() ? "no host" : text;
}

class Handshake {
 public:
  Handshake(std::string address, HostPort to, const Material& ours, const ProbeOptions& options)
      : address_(Printable(address)),
        to_(std::move(to)),
        uses_tls_(!ours.authorities.empty()),
        names_(options.names),
        connection_(to_, Clock::now() + options.timeout),
        context_(SSL_CTX_new(TLS_client_method())) {
    if (context_) Configure(ours);
  }
  ~Handshake() { ERR_clear_error(); }

  std::string Explain() {
    if (!connection_.connected() || !session_) return "";
    while (true) {
      const bool finished = SSL_is_init_finished(session_.get()) != 0;
      if (finished && !uses_tls_) return SpeaksTls();
      // The server's first message shows that it takes our certificate: with TLS 1.3 our side is
      // done earlier.
      char first = 0;
      const int done =
          finished ? SSL_read(session_.get(), &first, 1) : SSL_do_handshake(session_.get());
      if (done > 0 && finished) return "";
      if (done > 0) continue;
      const int why = SSL_get_error(session_.get(), done);
      const bool sent = Flush();
      if (why != SSL_ERROR_WANT_READ) return Failure();
      if (!sent || !Fill()) return connection_.silent() ? "" : Closed();
    }
  }

 private:
  void Configure(const Material& ours) {
    ERR_clear_error();
    for (const CertificatePointer& one : ReadCertificates(ours.authorities))
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), one.get());
    if (const auto chain = ReadCertificates(ours.certificate); !chain.empty()) {
      SSL_CTX_use_certificate(context_.get(), chain.front().get());
      for (std::size_t i = 1; i < chain.size(); ++i)
        SSL_CTX_add1_chain_cert(context_.get(), chain[i].get());
      if (const KeyPointer key = ReadKey(ours.key))
        SSL_CTX_use_PrivateKey(context_.get(), key.get());
    }
    SSL_CTX_set_verify(context_.get(), uses_tls_ ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_cert_verify_callback(context_.get(), &Handshake::Verify, this);
    static constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2.data(), kHttp2.size());
    session_.reset(SSL_new(context_.get()));
    if (!session_) return;
    if (IsAddress(to_.host)) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_.get()), to_.host.c_str());
    } else {
      SSL_set1_host(session_.get(), to_.host.c_str());
      SSL_set_tlsext_host_name(session_.get(), to_.host.c_str());
    }
    SSL_set_bio(session_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(session_.get());
  }

  // OpenSSL's check, which would drop a certificate that fails it.
  static int Verify(X509_STORE_CTX* check, void* self) {
    auto& handshake = *static_cast<Handshake*>(self);
    const int good = X509_verify_cert(check);
    const auto keep = [](X509* one) {
      if (one != nullptr) X509_up_ref(one);
      return CertificatePointer(one);
    };
    handshake.leaf_ = keep(X509_STORE_CTX_get0_cert(check));
    handshake.wrong_ = keep(X509_STORE_CTX_get_current_cert(check));
    return good;
  }

  bool Flush() {
    std::array<char, 16384> out{};
    for (int size = 0;
         (size = BIO_read(SSL_get_wbio(session_.get()), out.data(), out.size())) > 0;) {
      if (!connection_.Send(out.data(), static_cast<std::size_t>(size))) return false;
    }
    return true;
  }
  bool Fill() {
    std::array<char, 16384> in{};
    const std::size_t got = connection_.Receive(in);
    return got > 0 && BIO_write(SSL_get_rbio(session_.get()), in.data(), static_cast<int>(got)) > 0;
  }

  std::string SpeaksTls() const {
    return "the collector at " + address_ +
           " speaks TLS, and this client does not; give it the collector's ca.pem with " +
           names_.authorities;
  }
  std::string Closed() const;
  std::string Failure() const;
  std::string WrongCertificate(long why) const;
  std::string Refused(const std::string& why) const {
    return "the collector at " + address_ + " " + why +
           "; give this client a certificate signed by the " + "collector's --tls-client-ca with " +
           names_.certificate + " and " + names_.key;
  }
  std::string NoTls() const {
    return "the collector at " + address_ +
           " does not speak TLS, and this client does; start statcollectord with "
           "--tls-cert and --tls-key (or --tls-auto), or leave out " +
           names_.authorities;
  }

  const std::string address_;
  const HostPort to_;
  const bool uses_tls_;
  const Names names_;
  Connection connection_;
  const ContextPointer context_;
  SessionPointer session_;
  CertificatePointer leaf_, wrong_;  // the server's, and the one of its chain that failed the check
};

std::string Handshake::Closed() const {
  // gRPC's server sends no alert, but otherwise always a first message.
  if (SSL_is_init_finished(session_.get()) != 0)
    return Refused(SSL_get_certificate(session_.get()) == nullptr
                       ? "requires a client certificate, and this client has none"
                       : "refuses this client's certificate: another authority signed it, or it "
                         "has expired there");
  // A collector without TLS closes the connection when it reads a handshake.
  return uses_tls_ && !leaf_ ? NoTls() : "";
}

std::string Handshake::Failure() const {
  const unsigned long error = ERR_peek_error();
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return "";
  if (!uses_tls_) return "";
  switch (ERR_GET_REASON(error)) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return WrongCertificate(SSL_get_verify_result(session_.get()));
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_HTTP_REQUEST:
      return NoTls();
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return Refused("requires a client certificate, and this client has none");
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return Refused("does not know the authority that signed this client's certificate");
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return Refused(
          "refuses this client's certificate as expired; check the clocks of this machine and of "
          "the collector's");
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return Refused("refuses this client's certificate");
    default: {
      const char* reason = ERR_reason_error_string(error);
      return "TLS with the collector at " + address_ + " failed (" +
             (reason != nullptr ? reason : "unknown reason") + "); expected TLS 1.3; check that " +
             names_.authorities + " and the address belong to this collector";
    }
  }
}

std::string Handshake::WrongCertificate(long why) const {
  const std::string subject = "the certificate of the collector at " + address_;
  switch (why) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return subject + " has expired" +
             (wrong_ ? " (on " + TimeText(X509_get0_notAfter(wrong_.get())) + ")" : "") +
             "; put a new one into the collector's --tls-cert and --tls-key, or correct this "
             "machine's clock";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return subject + " is not valid yet" +
             (wrong_ ? " (before " + TimeText(X509_get0_notBefore(wrong_.get())) + ")" : "") +
             "; check the clocks of this machine and of the collector's";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return subject + " is for " + (leaf_ ? NamesOf(*leaf_) : "other hosts") + ", not for '" +
             Printable(to_.host) +
             "'; use one of these names, or a certificate that has this one (--host of "
             "statcollectord tls init)";
    default:
      return subject + " is not signed by an authority that " + names_.authorities + " has (" +
             X509_verify_cert_error_string(why) +
             "); give it the ca.pem that belongs to this collector";
  }
}

}  // namespace

std::string ExplainFailure(const std::string& address, const Material& ours,
                           const ProbeOptions& options) {
  auto to = ParseHostPort(address);
  if (!to) return "";
  return Handshake(address, *std::move(to), ours, options).Explain();
}

}  // namespace statcollect::tls
