// Sends the token of a file with a call.
#ifndef STATCOLLECT_CLIENT_RPC_TOKEN_H_
#define STATCOLLECT_CLIENT_RPC_TOKEN_H_

#include <string>

#include <grpcpp/client_context.h>

#include "common/status.h"
#include "common/token_file.h"

namespace statcollect::client {

// Reads the file; nothing with an empty path. Errors: those of ReadTokenFile.
inline Status AddToken(const std::string& token_file, grpc::ClientContext* context) {
  if (token_file.empty()) return Status::Ok();
  const auto token = ReadTokenFile(token_file);
  if (!token.ok()) return token.status();
  context->AddMetadata("authorization", "Bearer " + *token);
  return Status::Ok();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_TOKEN_H_
