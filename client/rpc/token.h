// Says with a call who makes it, and for which project.
#ifndef STATCOLLECT_CLIENT_RPC_TOKEN_H_
#define STATCOLLECT_CLIENT_RPC_TOKEN_H_

#include <string>

#include <grpcpp/client_context.h>

#include "common/project.h"
#include "common/status.h"
#include "common/token_file.h"

namespace statcollect::client {

// Adds the token of the file, and the project; nothing for an empty one. Errors: those of
// ReadTokenFile.
inline Status AddCaller(const std::string& token_file, const std::string& project,
                        grpc::ClientContext* context) {
  if (!project.empty()) context->AddMetadata(kProjectField, project);
  if (token_file.empty()) return Status::Ok();
  const auto token = ReadTokenFile(token_file);
  if (!token.ok()) return token.status();
  context->AddMetadata("authorization", "Bearer " + *token);
  return Status::Ok();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_TOKEN_H_
