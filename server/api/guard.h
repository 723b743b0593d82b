// Puts the check of tokens before every method of a gRPC service, before its request is parsed.
#ifndef STATCOLLECT_SERVER_API_GUARD_H_
#define STATCOLLECT_SERVER_API_GUARD_H_

#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/service_type.h>

#include "server/access/access.h"

namespace grpc {
class ServerBuilder;
}

namespace statcollect::api {

// In which HTTP tells the address of its caller, on the in-process channel.
inline constexpr char kPeerField[] = "x-statcollect-peer";
// Its value: the address, with random bytes of this process, so that the network cannot send one.
std::string SealPeer(const std::string& address);
// The same for the session of a browser.
inline constexpr char kSessionMetadata[] = "x-statcollect-session";
std::string SealSession(const access::SessionCredential& session);

// The same of the names in the caller's certificate: a field of bytes, one name a line.
inline constexpr char kCertificateField[] = "x-statcollect-certificate-bin";
std::string SealCertificate(const std::vector<std::string>& names);

// Guards services of the callback API. What it found out about the caller is the service's
// access::CurrentPrincipal. Calls that stay open are ended within a second after their token was
// revoked or has expired (kUnauthenticated). Successful calls that the table marks are audited,
// with the run, profile or folder that they name.
class Guard {
 public:
  // `streams_max`: that one caller may have open at a time (kResourceExhausted); 0: no limit.
  // Callers of whom nothing is known have none.
  explicit Guard(access::AccessControl& access, std::size_t streams_max = 0);
  ~Guard();  // after the server is gone
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // To be registered instead of `service`, which must outlive it and must not be registered itself.
  std::unique_ptr<grpc::Service> Wrap(const google::protobuf::ServiceDescriptor& type,
                                      grpc::Service& service);
  // Audits what the services answer; to be called once, before the server is built.
  void AddAudit(grpc::ServerBuilder& builder);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_GUARD_H_
