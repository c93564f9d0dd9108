-- Health of an RLJob for Argo CD. Argo CD runs it without Lua's standard libraries; install it into argocd-cm:
--
--   kubectl -n argocd patch configmap argocd-cm --type=merge --patch "$(jq --null-input \
--     --rawfile lua manifests/gitops/argocd-health.lua \
--     '{data: {"resource.customizations.health.rljob.dev_RLJob": $lua}}')"
--
-- Failed, and a spec that cannot be made into pods: Degraded. Training, and trained: Healthy.

local function waiting(message)
  return {status = "Progressing", message = message}
end

if obj.status == nil or obj.status.conditions == nil then
  return waiting("the operator has not seen it yet")
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return waiting("the operator has not seen its newest spec yet")
end

local condition = {}
for _, found in ipairs(obj.status.conditions) do
  condition[found.type] = found
end

local function is(kind)
  return condition[kind] ~= nil and condition[kind].status == "True"
end

local function health(status, kind)
  local found = condition[kind]
  if found == nil then
    return waiting("the operator has reported nothing yet")
  end
  local message = found.reason or kind
  if found.message ~= nil and found.message ~= "" then
    message = message .. ": " .. found.message
  end
  return {status = status, message = message}
end

if is("Failed") then return health("Degraded", "Failed") end
if is("Succeeded") then return health("Healthy", "Succeeded") end
if is("Stalled") then return health("Degraded", "Stalled") end
if is("Reconciling") then return health("Progressing", "Reconciling") end
if is("Suspended") then return health("Suspended", "Suspended") end
if is("Ready") then return health("Healthy", "Ready") end
return health("Progressing", "Ready")
