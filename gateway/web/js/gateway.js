// Streams of the gateway, described in gateway.d.ts. Bundled from src/: edit there, run `make js`.
var PROTOCOL_NAME="gateway.js/3";var ANSWER_TIMEOUT_MS=1e4;function holdLock(name){if(!globalThis.navigator?.locks)return Promise.resolve();return new Promise(
resolve=>{navigator.locks.request(name,()=>(resolve(),new Promise(()=>{})))})}function whenReleased(name,callback){
globalThis.navigator?.locks?.request(name,()=>void callback())}var FIRST_BACKOFF_MS=500;var MAX_BACKOFF_MS=3e4;function drawBackoff(attempt){return Math.random()*Math.
min(MAX_BACKOFF_MS,FIRST_BACKOFF_MS*2**attempt)}function parseClaims(jwt){try{return JSON.parse(atob(jwt.split(".")[1].replace(/-/g,"+").replace(/_/g,
"/")))}catch{return{}}}function getExpiry(jwt){return(parseClaims(jwt).exp??Infinity)*1e3}function getIdentity(jwt){
if(!jwt)return"";const{exp,iat,nbf,jti,...identifying}=parseClaims(jwt);return Object.keys(identifying).
length?JSON.stringify(identifying):jwt}var RESPONSE_TIMEOUT_MS=5e3;var TRANSIENT_STATUSES=[408,425,429];var PROXY_STATUSES=[502,503,504];async function fetchAnswer(url,{
credentials,jwt}={}){const headers={Accept:"text/event-stream"};if(jwt)headers.Authorization=`Bearer\
 ${jwt}`;return fetchHead(url,{headers,credentials:credentials?"include":"same-origin"})}async function fetchHead(url,options){
const control=new AbortController;const timer=setTimeout(()=>control.abort(),RESPONSE_TIMEOUT_MS);try{
const response=await fetch(url,{...options,cache:"no-store",signal:control.signal});const{status}=response;
const mediaType=response.headers.get("content-type")??"";const problem=status<400?{}:await response.
json().catch(()=>({}));return{status,mediaType,problem:problem??{}}}catch(error){return{isLate:control.
signal.aborted,failure:error?.cause?.code}}finally{clearTimeout(timer);control.abort()}}function getRefusal({
status,problem},position){if(!(status>=400&&status<500)||TRANSIENT_STATUSES.includes(status))return null;
const{detail=`HTTP status ${status}`,topic}=problem;let code="bad-request";if(status===401)code="una\
uthorized";else if(status===403)code="forbidden";else if(status===404)code=topic?"unknown-topic":"un\
known-path";else if(status===400&&position&&problem.title!=="Bad request")code="position-refused";return{
code,message:detail,status}}async function diagnose(request,{answer,jwt,transport,hasFallback,isSilent}){
const url=request.base+request.path;answer??=await fetchAnswer(url,{credentials:request.credentials,
jwt});const{status,mediaType,problem,isLate,failure}=answer;const refused=hint=>({reason:"refused",hint});
const buffering={reason:"proxy-buffering",hint:`${request.base} responds, but no event of ${url} arr\
ives: turn buffering off in the proxy in between, or wait if partitionReadyTimeout of its route is l\
onger than 15 s`};if(status>=400){const guess=PROXY_STATUSES.includes(status)?"a proxy does not reac\
h the gateway; see whether the gateway runs, and the proxy's target":`${request.base} seems to be an\
other server than the gateway; give the gateway's address as \`base\`, or let this server pass the pat\
h on to it`;return refused(`${url} responds with status ${status}: ${problem.detail??guess}`)}if(status&&
!mediaType.startsWith("text/event-stream")){return refused(`${url} responds with ${mediaType||"no me\
dia type"} instead of a stream of events: this is another server, or a proxy that does not pass the \
path on to the gateway`)}if(status&&isSilent)return buffering;if(status&&(hasFallback||transport==="\
EventSource"))return null;if(status){return refused(`${url} responds to HTTP, but no WebSocket to ${request.
base}/ws opens: a proxy in between must pass Upgrade on, and a page of another origin whose browser \
sends cookies needs allow.credentials in access-control`)}const page=globalThis.location?.origin;const isForeign=Boolean(
page)&&page!==new URL(request.base).origin;const probe={method:"HEAD",mode:"no-cors",credentials:"om\
it"};const isAlive=(await fetchHead(`${request.base}/gateway.js`,probe)).status!==void 0;if(!isAlive)
return{reason:"unreachable",hint:explainUnreachable(request.base,failure)};if(isLate)return buffering;
if(isForeign){return{reason:"foreign-origin",hint:`${url} responds, but not to pages of ${page}: all\
ow this origin in listen.access-control (or \`gateway run --origin\`), or in the route's access-contro\
l, or let the page's own server pass the path on to the gateway`}}return refused(`${url} redirects t\
o another server, as one that asks for a login does`)}function explainUnreachable(base,failure){const{
protocol,host}=new URL(base);const problem=`${host} cannot be reached${failure?` (${failure})`:""}`;
if(globalThis.navigator?.onLine===false)return`${problem}: this device is offline`;if(protocol==="ht\
tp:"&&globalThis.location?.protocol==="https:"){return`${problem}: a page of https may not open http\
; give an address of https`}if(protocol==="https:"&&globalThis.location){return`${problem}: open ${base}\
/gateway.js in a tab; if the browser warns of the certificate, it is not trusted; else the address i\
s wrong, or the gateway does not run`}if(/CERT|SELF_SIGNED/.test(failure)){return`${problem}: its ce\
rtificate is not trusted; name its CA in NODE_EXTRA_CA_CERTS`}return`${problem}: check the address, \
and whether the gateway runs`}var GROUPED_EVENT_TYPES={"partitions-ready":"ready","partitions-error":"error"};function splitGroupedEvent(type,{
topics}){return topics.flatMap(({topic,code,resolved,partitions,offsets})=>partitions.map((partition,n)=>{
if(type==="partitions-ready")return{topic,partition,offset:offsets[n],resolved};const problem=`${topic}\
-${partition} cannot be read for now (${code})`;return{topic,partition,code,message:`${problem}; the\
 stream goes on by itself`}}))}var EVENT_TYPES=["message","begin","ready","position","gap","delete","snapshot-end","challenge","end",
"error",...Object.keys(GROUPED_EVENT_TYPES)];var CLOSED=2;var FIRST_EVENT_TIMEOUT_MS=15e3;var HEARTBEAT_DELAY_MS=5e3;
var EventSourceTransport=class{#multiplexer;#subscription;#source=null;#hasOpened=false;#timer=null;#firstEventTimer=null;#silenceTimer=null;#heartbeatMs=0;#receivedAt=0;constructor(multiplexer,subscription){
this.#multiplexer=multiplexer;this.#subscription=subscription}subscribe(){this.#clearTimers();const{
request,position}=this.#subscription;const{base,path,from,filter,fields,credentials}=request;const url=new URL(
base+path);const start=position?{lastEventId:position}:{from};const query={...start,filter:filter&&JSON.
stringify(filter),fields:fields?.join()};for(const[name,value]of Object.entries(query))if(value)url.
searchParams.set(name,value);const options={withCredentials:Boolean(credentials)};const source=this.#source=
new this.#multiplexer.EventSource(url.href,options);this.#subscription.isAtPosition=true;this.#hasOpened=
false;source.onopen=()=>this.#hasOpened=true;this.#firstEventTimer=setTimeout(()=>this.#multiplexer.
explainFailure(this.#subscription,{isSilent:true}),FIRST_EVENT_TIMEOUT_MS);for(const type of EVENT_TYPES){
source.addEventListener(type,event=>{if(source!==this.#source)return;clearTimeout(this.#firstEventTimer);
this.#receivedAt=Date.now();if(event.data!==void 0)this.#handleEvent(event);else if(type==="error")this.#handleFailure(
source,url.href,credentials)})}}unsubscribe(){this.#clearTimers();this.#source?.close();this.#source=
null}resubscribe(subscription,reason,delayMs){if(this.#source?.readyState!==CLOSED)return;this.#timer=
setTimeout(()=>this.subscribe(),delayMs)}#handleEvent({type,data,lastEventId}){let content=data;try{
content=JSON.parse(data.replace(/^\ufeff/,""))}catch{}if(type==="message"&&this.#subscription.request.
texts){content=content===data?JSON.stringify(data):data.replace(/^\ufeff/,"")}const position=lastEventId===
this.#subscription.position?void 0:lastEventId;if(type==="challenge")return this.#renew(content.url);
if(type==="begin"){this.#heartbeatMs=1e3*(content.heartbeat??0);clearTimeout(this.#silenceTimer);this.#checkSilence()}
let message={...content,type,position};if(type==="message")message={type:"records",records:[content],
position};else if(type==="delete")message={type,record:content,position};this.#multiplexer.handleMessage(
this.#subscription,message)}#renew(path){const{base,credentials}=this.#subscription.request;const absolute=new URL(
path,base).href;const url=absolute.startsWith(`${base}/`)?absolute:base+path;const answer=fetch(url,
{method:"POST",credentials:credentials?"include":"same-origin"});answer.catch(()=>{})}async#handleFailure(source,url,credentials){
const subscription=this.#subscription;this.#multiplexer.handleDisconnect(subscription);if(source.readyState!==
CLOSED&&this.#hasOpened){return this.#multiplexer.explainFailure(subscription)}source.close();const answer=await fetchAnswer(
url,{credentials});if(source!==this.#source)return;const error=getRefusal(answer,subscription.position);
if(error)return this.#multiplexer.handleMessage(subscription,{type:"error",...error});this.#multiplexer.
explainFailure(subscription,{answer});this.#timer=setTimeout(()=>{if(this.#hasOpened||!this.#multiplexer.
switchTransport(subscription,false)){this.subscribe()}},drawBackoff(++subscription.attempts))}#checkSilence(){
if(!this.#heartbeatMs)return;const leftMs=this.#receivedAt+2*this.#heartbeatMs+HEARTBEAT_DELAY_MS-Date.
now();if(leftMs>0){this.#silenceTimer=setTimeout(()=>this.#checkSilence(),leftMs);return}this.#source.
close();this.#multiplexer.handleDisconnect(this.#subscription);this.subscribe()}#clearTimers(){clearTimeout(
this.#timer);clearTimeout(this.#firstEventTimer);clearTimeout(this.#silenceTimer)}};function postToMembers(members,message){const receiversByPort=new Map;for(const{port,stream,attempt}of members){
if(!receiversByPort.has(port))receiversByPort.set(port,[]);receiversByPort.get(port).push([stream,attempt])}
for(const[port,to]of receiversByPort)port.post({to,message})}function createUuid(){if(globalThis.crypto.randomUUID)return crypto.randomUUID();const bytes=crypto.
getRandomValues(new Uint8Array(16));return Array.from(bytes,byte=>byte.toString(16).padStart(2,"0")).
join("")}var Subscription=class{members=new Set;transport=null;id=null;reopenTimer=null;hasBegun=false;isAtPosition=true;recentMessages=[];attempts=0;failedAttempts=0;isDiagnosed=false;hasTrouble=false;previousRequest=null;hasNewView=false;constructor(request,position,jwt){
this.position=position??"";this.jwt=jwt;const isExclusive=request.credit!==void 0||/[?&]until=/.test(
request.path);this.scope=[getIdentity(jwt),isExclusive?createUuid():""];this.setRequest(request)}setRequest(request){
const{base,path,filter,fields,texts}=request;this.request=request;this.viewKey=JSON.stringify([this.
scope,base,path,filter,fields,texts])}get allowsEitherTransport(){const{transport,token,credit}=this.
request;return transport==="auto"&&!token&&credit===void 0}};var TOKEN=/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},]/g;var RECORDS='"records":[';function splitRecords(message){
const texts=[];let start=message.indexOf(RECORDS)+RECORDS.length;let depth=0;const tokens=new RegExp(
TOKEN);tokens.lastIndex=start;for(let match;depth>=0&&(match=tokens.exec(message));){const[token]=match;
if(token==="["||token==="{")depth++;else if(token==="]"||token==="}")depth--;if(depth<0||depth===0&&
token===","){texts.push(message.slice(start,match.index));start=tokens.lastIndex}}return texts}var PING_AFTER_MS=15e3;var MAX_WRITES_IN_FLIGHT=50;var OPEN_TIMEOUT_MS=2e4;var FIRST_OPEN_TIMEOUT_MS=5e3;
var IDLE_TIMEOUT_MS=1e3;var DRAIN_TIMEOUT_MS=1e3;var MAX_TIMER_MS=2**31-1;var MIN_ATTEMPTS_BY_CLOSE_CODE={
1012:2,1013:4};var SERVICE_RESTART=1012;var WebSocketTransport=class{#multiplexer;#url;#onClose;#socket=null;#isOpen=false;#hasEverOpened=false;#attempts=0;#restartDelayMs;#lastNumber=0;#subscriptions=new Set;#subscriptionsById=new Map;#writes=new Map;#receivedAt=0;#tokenRequests=0;#timers={};constructor(multiplexer,base,jwt,onClose){
this.jwt=jwt;this.#multiplexer=multiplexer;this.#url=`${base.replace(/^http/,"ws")}/ws`;this.#onClose=
onClose;globalThis.addEventListener?.("online",this);this.#connect()}close(){for(const name of Object.
keys(this.#timers))this.#clearTimer(name);globalThis.removeEventListener?.("online",this);this.#dropSocket();
this.#onClose()}handleEvent(){this.#retryNow()}subscribe(subscription){this.#subscriptions.add(subscription);
this.#clearTimer("idle");if(this.#isOpen)return this.#sendSubscribe(subscription);if(!this.#attempts)
return;subscription.failedAttempts=Math.max(subscription.failedAttempts,this.#attempts);this.#multiplexer.
explainFailure(subscription)}unsubscribe(subscription){clearTimeout(subscription.reopenTimer);this.#subscriptions.
delete(subscription);if(this.#subscriptionsById.delete(subscription.id)){this.#send({type:"unsubscri\
be",id:subscription.id})}this.#closeWhenIdle()}change({id,request:{path,filter,fields}}){const view={
filter:filter??void 0,fields:fields??void 0};this.#send({type:"change",id,path,...view})}credit({id,
hasBegun},n){if(hasBegun)this.#send({type:"credit",id,n})}produce(member,message){this.#clearTimer("\
idle");const{isSent=false}=this.#writes.get(message.id)??{};this.#writes.set(message.id,{member,message,
isSent});this.#sendWrites()}renewToken(jwt){if(jwt)this.jwt=jwt;this.#scheduleTokenRequest();if(jwt)
this.#send({type:"token",jwt});this.#retryNow()}resubscribe(subscription,reason,delayMs){this.#subscriptionsById.
delete(subscription.id);if(reason==="drain"){this.#restartDelayMs??=delayMs;const reconnect=()=>this.#handleClose(
{code:SERVICE_RESTART});return this.#setTimer("drained",DRAIN_TIMEOUT_MS,reconnect)}subscription.reopenTimer=
setTimeout(()=>this.subscribe(subscription),delayMs)}requestToken(){const members=this.#listMembers().
filter(({jwt})=>jwt);if(!members.length)return;postToMembers([members[this.#tokenRequests++%members.
length]],{type:"token"})}#connect(){this.#clearTimer("retry");if(getExpiry(this.jwt)<=Date.now()){this.
requestToken();return this.#scheduleRetry()}const protocols=this.jwt?["gateway.v1",`bearer.${this.jwt}`]:
["gateway.v1"];const socket=this.#socket=new this.#multiplexer.WebSocket(this.#url,protocols);const ifCurrent=handle=>event=>socket===
this.#socket&&handle(event);socket.onopen=ifCurrent(()=>this.#handleOpen());socket.onmessage=ifCurrent(
({data})=>this.#handleMessage(data));socket.onclose=ifCurrent(event=>this.#handleClose(event));socket.
onerror=()=>{};const isFirst=!this.#hasEverOpened&&this.#attempts<2;const timeoutMs=isFirst?FIRST_OPEN_TIMEOUT_MS:
OPEN_TIMEOUT_MS;this.#setTimer("silence",timeoutMs,()=>this.#handleClose())}#handleOpen(){this.#isOpen=
this.#hasEverOpened=true;this.#receivedAt=Date.now();for(const subscription of this.#subscriptions)this.#sendSubscribe(
subscription);for(const write of this.#writes.values())write.isSent=false;this.#sendWrites();this.#scheduleTokenRequest();
this.#checkSilence()}#sendSubscribe(subscription){clearTimeout(subscription.reopenTimer);const id=subscription.
id=`s${++this.#lastNumber}`;this.#subscriptionsById.set(id,subscription);const{position,request}=subscription;
const{path,from,filter,fields,credit}=request;const start=position?{lastEventId:position}:{from};const view={
path,filter:filter??void 0,fields:fields??void 0};subscription.isAtPosition=true;this.#send({type:"s\
ubscribe",id,...view,...start,credit})}#handleMessage(data){const{id,...message}=JSON.parse(data);this.#receivedAt=
Date.now();this.#attempts=0;const{type}=message;const subscription=this.#subscriptionsById.get(id);if(type===
"records"&&subscription?.request.texts)message.records=splitRecords(data);if(subscription)this.#multiplexer.
handleMessage(subscription,message);else if(this.#writes.has(id)){if(message.code!=="draining")this.#settleWrite(
id,message)}else if(type==="challenge")this.requestToken();else if(type==="error"&&id===void 0)postToMembers(
this.#listMembers(),message)}#sendWrites(){let capacity=MAX_WRITES_IN_FLIGHT;for(const write of this.#writes.
values()){if(!this.#isOpen||capacity--===0)return;if(!write.isSent)this.#send({type:"produce",...write.
message});write.isSent=true}}#settleWrite(id,{type,...answer}){const{member}=this.#writes.get(id);this.#writes.
delete(id);this.#sendWrites();const outcome=type==="error"?{error:answer}:answer;postToMembers([member],
{type:"answer",id,...outcome});this.#closeWhenIdle()}#handleClose({code}={}){const wasOpen=this.#isOpen;
this.#dropSocket();this.#clearTimer("drained");if(!wasOpen)this.#attempts++;if(!wasOpen&&this.jwt)this.
requestToken();this.#subscriptionsById.clear();const subscriptions=[...this.#subscriptions];for(const subscription of subscriptions){
this.#multiplexer.handleDisconnect(subscription);this.#multiplexer.explainFailure(subscription)}if(!subscriptions.
length)this.#explainPendingWrites();if(this.#attempts>1&&!this.#hasEverOpened){for(const subscription of subscriptions){
this.#multiplexer.switchTransport(subscription,true)}}if(!this.#subscriptions.size&&!this.#writes.size)
return this.close();this.#attempts=Math.max(this.#attempts,MIN_ATTEMPTS_BY_CLOSE_CODE[code]??0);this.#scheduleRetry()}#explainPendingWrites(){
const[write]=this.#writes.values();if(!write||this.#attempts!==2)return;const request={base:this.#url.
replace(/^ws/,"http").slice(0,-3),path:write.message.path};this.#multiplexer.explainWrites(this.#listMembers(),
request,this.#attempts,this.jwt)}#dropSocket(){const socket=this.#socket;this.#socket=null;this.#isOpen=
false;this.#clearTimer("silence");socket?.close()}#scheduleRetry(){const delayMs=this.#restartDelayMs??
drawBackoff(this.#attempts);this.#restartDelayMs=void 0;this.#setTimer("retry",delayMs,()=>this.#connect())}#retryNow(){
if(this.#timers.retry)this.#connect()}#send(message){if(this.#isOpen)this.#socket.send(JSON.stringify(
message))}#closeWhenIdle(){if(this.#subscriptions.size||this.#writes.size)return;this.#setTimer("idl\
e",IDLE_TIMEOUT_MS,()=>this.close())}#listMembers(){const subscribers=[...this.#subscriptions].flatMap(
({members})=>[...members]);return[...subscribers,...[...this.#writes.values()].map(({member})=>member)]}#scheduleTokenRequest(){
const leftMs=getExpiry(this.jwt)-Date.now();if(leftMs===Infinity)return;const waitMs=Math.max(1e3,leftMs-
Math.min(3e4,leftMs/5));this.#setTimer("expiry",Math.min(waitMs,MAX_TIMER_MS),()=>{this.requestToken();
this.#scheduleTokenRequest()})}#checkSilence(){const silenceMs=Date.now()-this.#receivedAt;if(silenceMs>=
2*PING_AFTER_MS)return this.#handleClose();if(silenceMs>=PING_AFTER_MS)this.#send({type:"ping"});this.#setTimer(
"silence",PING_AFTER_MS/3,()=>this.#checkSilence())}#setTimer(name,delayMs,callback){clearTimeout(this.#timers[name]);
this.#timers[name]=setTimeout(()=>{delete this.#timers[name];callback()},delayMs)}#clearTimer(name){
clearTimeout(this.#timers[name]);delete this.#timers[name]}};var FINAL_END_REASONS=new Set(["until","unsubscribed","offset-out-of-range"]);var TRANSIENT_ERROR_CODES=new Set(
["kafka-unavailable","rate-limited","too-many-subscriptions","internal-error"]);var MAX_UNAUTHORIZED_ATTEMPTS=3;
var MAX_RECENT_MESSAGES=64;var Multiplexer=class{#members=new Map;#subscriptions=new Set;#sockets=new Map;#tabs=new Set;#blockedServers=new Set;constructor({
WebSocket,EventSource}={}){this.WebSocket=WebSocket??globalThis.WebSocket;this.EventSource=EventSource??
globalThis.EventSource}close(){for(const member of[...this.#members.values()])this.#removeMember(member);
for(const socket of[...this.#sockets.values()])socket.close()}receive(port,tab,{type,stream,attempt,
...content}){if(tab&&!this.#tabs.has(tab)){this.#tabs.add(tab);whenReleased(tab,()=>this.removeTab(tab))}
const member=this.#members.get(stream);const{jwt}=content;if(type==="open")this.#openStream({stream,
attempt,port,tab,jwt},content);else if(type==="produce")this.#produce({stream,port,jwt},content);else if(type===
"bye")this.removeTab(tab);else if(type==="leave"&&member)this.#removeMember(member);else if(type==="\
token"&&member)member.subscription.transport.renewToken?.(jwt);else if(member?.attempt!==attempt)return;else if(type===
"change")this.#changeView(member,content.view);else if(type==="credit"){member.subscription.transport.
credit(member.subscription,content.n)}}removeTab(tab){this.#tabs.delete(tab);for(const member of[...this.#members.
values()]){if(member.tab===tab)this.#removeMember(member)}}#openStream(member,{request,position}){const earlier=this.#members.
get(member.stream);if(earlier)this.#removeMember(earlier);this.#subscribe(member,new Subscription(request,
position,member.jwt))}#subscribe(member,subscription){this.#members.set(member.stream,member);this.#subscriptions.
add(subscription);subscription.members.add(member);member.subscription=subscription;this.#openTransport(
subscription)}#openTransport(subscription){const{jwt,request}=subscription;const isBlocked=this.EventSource&&
(!this.WebSocket||this.#blockedServers.has(request.base));const usesEventSource=request.transport===
"eventsource"||subscription.allowsEitherTransport&&isBlocked;const needed=usesEventSource?"EventSour\
ce":"WebSocket";if(!this[needed]){const error={code:"unsupported",message:`no ${needed} here; give o\
ne as an option`};return queueMicrotask(()=>this.#closeSubscription(subscription,{error}))}subscription.
transport=usesEventSource?new EventSourceTransport(this,subscription):this.#getSocket(request.base,jwt);
subscription.transport.subscribe(subscription)}switchTransport(subscription,isBlocked){if(!subscription.
allowsEitherTransport||!this.WebSocket||!this.EventSource)return false;this.#blockedServers[isBlocked?
"add":"delete"](subscription.request.base);subscription.transport.unsubscribe(subscription);this.#openTransport(
subscription);return true}#getSocket(base,jwt){const key=`${base} ${getIdentity(jwt)}`;const existing=this.#sockets.
get(key);if(existing&&jwt&&getExpiry(jwt)>getExpiry(existing.jwt))existing.renewToken(jwt);if(existing)
return existing;const socket=new WebSocketTransport(this,base,jwt,()=>this.#sockets.delete(key));this.#sockets.
set(key,socket);return socket}#produce(member,{base,message,jwt}){if(this.WebSocket)return this.#getSocket(
base,jwt).produce(member,message);const error={code:"unsupported",message:"to produce takes a WebSoc\
ket; give one"};postToMembers([member],{type:"answer",id:message.id,error})}#removeMember(member){const{
subscription}=member;this.#members.delete(member.stream);subscription.members.delete(member);if(!subscription.
members.size)this.#removeSubscription(subscription)}#removeSubscription(subscription){this.#subscriptions.
delete(subscription);subscription.transport?.unsubscribe(subscription)}#changeView(member,view){const{
subscription}=member;const{request,position,hasBegun,hasNewView,transport,members}=subscription;const newRequest={
...request,...view};if(members.size===1&&transport?.change&&hasBegun&&!subscription.previousRequest){
subscription.previousRequest=request;subscription.setRequest(newRequest);return transport.change(subscription)}
this.#removeMember(member);const replacement=new Subscription(newRequest,position,subscription.jwt);
replacement.hasNewView=hasBegun||hasNewView;this.#subscribe(member,replacement)}handleMessage(subscription,message){
const{type,position}=message;if(!this.#subscriptions.has(subscription))return;if(type==="end")return this.#handleEnd(
subscription,message);if(type==="error"&&message.partition===void 0){if(this.#handleError(subscription,
message))return}if(type==="begin")this.#handleBegin(subscription,message);if(position)Object.assign(
subscription,{position,isAtPosition:true});else if(["records","delete","gap"].includes(type))subscription.
isAtPosition=false;postToMembers(subscription.members,message);const equals=[...this.#subscriptions].
filter(other=>{return other!==subscription&&other.hasBegun&&other.viewKey===subscription.viewKey});const{
recentMessages}=subscription;if(type==="begin"||!equals.length)subscription.recentMessages=[];else if(recentMessages.
push(message)>MAX_RECENT_MESSAGES)recentMessages.shift();if(position)this.#merge(subscription,equals)}#handleBegin(subscription,message){
subscription.hasBegun=true;Object.assign(subscription,{attempts:0,failedAttempts:0,hasTrouble:false});
if(message.changed)subscription.previousRequest=null;else if(subscription.hasNewView)message.changed=
true;subscription.hasNewView=false}#merge(subscription,equals){for(const other of equals){if(!subscription.
hasBegun||subscription.previousRequest||other.previousRequest)continue;const{position,recentMessages}=other;
let at=recentMessages.findLastIndex(message=>message.position===subscription.position);if(at<0&&other.
isAtPosition&&position===subscription.position){at=recentMessages.length}if(at<0)continue;for(const message of recentMessages.
slice(at+1)){postToMembers(subscription.members,message)}for(const member of subscription.members){member.
subscription=other;other.members.add(member)}subscription.members.clear();return this.#removeSubscription(
subscription)}}handleDisconnect(subscription,reason){if(!this.#subscriptions.has(subscription))return;
subscription.failedAttempts=subscription.hasBegun?0:subscription.failedAttempts+1;Object.assign(subscription,
{hasBegun:false,previousRequest:null});postToMembers(subscription.members,{type:"lost",reason})}async explainFailure(subscription,{
known,...situation}={}){const{failedAttempts,hasTrouble,request,jwt}=subscription;const isPowerOfTwo=(failedAttempts&
failedAttempts-1)===0;const isDue=failedAttempts>1&&(!hasTrouble||isPowerOfTwo);if(!isDue&&!situation.
isSilent||subscription.isDiagnosed)return;subscription.isDiagnosed=true;const isEventSource=subscription.
transport instanceof EventSourceTransport;const trouble=known??await diagnose(request,{transport:isEventSource?
"EventSource":"WebSocket",hasFallback:subscription.allowsEitherTransport&&Boolean(this.EventSource),
jwt:subscription.transport?.jwt??jwt,...situation});subscription.isDiagnosed=false;if(!trouble||subscription.
hasBegun||!this.#subscriptions.has(subscription))return;subscription.hasTrouble=true;const attempts=Math.
max(1,failedAttempts);postToMembers(subscription.members,{type:"trouble",attempts,...trouble})}async explainWrites(members,request,attempts,jwt){
const trouble=await diagnose(request,{transport:"WebSocket",hasFallback:false,jwt});if(trouble)postToMembers(
members,{type:"trouble",attempts,...trouble})}#handleEnd(subscription,{reason,position,retry}){if(position)
subscription.position=position;if(FINAL_END_REASONS.has(reason)){return this.#closeSubscription(subscription,
{reason,position})}this.handleDisconnect(subscription,reason);const hint=`the gateway ended the stre\
am before it began: ${reason}`;this.explainFailure(subscription,{known:{reason:"refused",hint}});const delayMs=retry??
drawBackoff(++subscription.attempts);subscription.transport.resubscribe(subscription,reason,delayMs)}#handleError(subscription,error){
const{hasBegun,previousRequest,position,transport,jwt}=subscription;const resubscribe=()=>{const delayMs=drawBackoff(
++subscription.attempts);transport.resubscribe(subscription,error.code,delayMs)};if(hasBegun&&previousRequest){
subscription.setRequest(previousRequest);subscription.previousRequest=null;postToMembers(subscription.
members,error);transport.unsubscribe(subscription);transport.subscribe(subscription)}else if(error.code===
"unknown-subscription"){if(hasBegun)resubscribe()}else if(error.code==="position-refused"&&position){
const nowhere={topic:null,partition:null,from:null,to:null};subscription.position="";const gap={type:"\
gap",...nowhere,reason:error.code,position:""};postToMembers(subscription.members,gap);transport.resubscribe(
subscription,error.code,0)}else if(TRANSIENT_ERROR_CODES.has(error.code)){postToMembers(subscription.
members,error);this.handleDisconnect(subscription,error.code);this.explainFailure(subscription,{known:{
reason:"refused",hint:error.message}});resubscribe()}else if(error.code==="unauthorized"&&jwt&&subscription.
attempts<MAX_UNAUTHORIZED_ATTEMPTS){transport.requestToken();resubscribe()}else if(hasBegun)return false;else
this.#closeSubscription(subscription,{error});return true}#closeSubscription(subscription,content){postToMembers(
subscription.members,{type:"closed",...content});for(const member of[...subscription.members])this.#removeMember(
member)}};function serveTabs(worker){const multiplexer=new Multiplexer;const lock=`${PROTOCOL_NAME} worker ${createUuid()}`;
const lockHeld=holdLock(lock);worker.onconnect=({ports:[port]})=>{let tab="";const client={post:message=>port.
postMessage(message)};port.onclose=()=>multiplexer.removeTab(tab);port.onmessage=async({data})=>{if(!data.
hello)return multiplexer.receive(client,tab,data);tab=data.hello;await lockHeld;port.postMessage({hello:lock})}}}function resolveAddress(path,base){if(/^(http|ws)s?:/i.test(path)){const url=new URL(path.replace(/^ws/i,
"http"));return{base:url.origin,path:url.pathname+url.search}}const page=globalThis.location?.href;if(!base&&
!page)throw new TypeError("outside a page, give a whole URL, or the option base");const root=new URL(
base??"/",page).href.replace(/^ws/i,"http");return{base:root.replace(/\/$/,""),path:`/${path.replace(
/^\/+/,"")}`}}var Link=class{streams=new Map;isUp=false;attach(id,stream){if(!this.streams.size){for(const type of[
"pagehide","pageshow"])globalThis.addEventListener?.(type,this)}this.streams.set(id,stream);if(this.
isUp)stream.onUp()}detach(id){this.streams.delete(id);if(this.streams.size)return;for(const type of[
"pagehide","pageshow"])globalThis.removeEventListener?.(type,this)}markUp(){this.isUp=true;for(const stream of[
...this.streams.values()])stream.onUp()}markDown(){this.isUp=false;for(const stream of[...this.streams.
values()])stream.onDown()}deliver({to,message}){for(const[id,attempt]of to)this.streams.get(id)?.onMessage(
message,attempt)}handleEvent({type,persisted}){if(type==="pageshow")return persisted&&this.join();for(const stream of this.
streams.values())stream.onPageHide();this.leave()}};var ChannelLink=class extends Link{#channel=new BroadcastChannel(PROTOCOL_NAME);#tab="";#leader="";#multiplexer=null;#candidacy=null;#resign=null;#askedAt=0;#localPort={
post:message=>queueMicrotask(()=>this.deliver(message))};#channelPort={post:message=>this.#channel.postMessage(
{from:this.#tab,...message})};constructor(){super();this.#channel.onmessage=({data})=>this.#handleMessage(
data);setInterval(()=>this.#checkLeader(),ANSWER_TIMEOUT_MS/4)}async join(){this.#tab=`${PROTOCOL_NAME}\
 tab ${createUuid()}`;this.#candidacy=new AbortController;await holdLock(this.#tab);this.#requestLeadership();
return this}leave(){this.send({type:"bye"});this.#tab="";this.#candidacy.abort();this.#resign?.();this.#stepDown()}send(message){
if(this.#multiplexer)this.#multiplexer.receive(this.#localPort,null,message);else if(this.#leader){this.#channel.
postMessage({for:this.#leader,tab:this.#tab,message})}}#requestLeadership(steal=false){const{signal}=this.#candidacy;
const options=steal?{steal}:{signal};navigator.locks.request(`${PROTOCOL_NAME} leader`,options,()=>this.#lead()).
catch(()=>{if(signal.aborted)return;this.#stepDown();this.#requestLeadership()});if(!steal)this.#channel.
postMessage({who:true})}#lead(){this.#multiplexer=new Multiplexer;this.#leader=this.#tab;this.#channel.
postMessage({leader:this.#tab});this.markUp();return new Promise(resolve=>this.#resign=resolve)}#stepDown(){
this.#multiplexer?.close();this.#multiplexer=this.#resign=null;this.#leader="";this.markDown()}#handleMessage({
who,leader,from,to,message,tab,...rest}){if(who&&this.#multiplexer)this.#channel.postMessage({leader:this.#tab});else if(leader)
this.#follow(leader);else if(to&&from===this.#leader)this.deliver({to,message});else if(tab&&rest.for===
this.#tab){this.#multiplexer?.receive(this.#channelPort,tab,message)}}#follow(leader){this.#askedAt=
0;if(this.#multiplexer||!this.#tab||leader===this.#leader)return;this.#leader=leader;this.markUp()}#checkLeader(){
if(this.#multiplexer||!this.#tab)return;if(document.visibilityState!=="visible")this.#askedAt=0;else if(!this.#askedAt)
this.#askedAt=Date.now();else if(Date.now()-this.#askedAt>ANSWER_TIMEOUT_MS){this.#askedAt=0;return this.#requestLeadership(
true)}this.#channel.postMessage({who:true})}};var LocalLink=class extends Link{#multiplexer;#port={post:message=>queueMicrotask(()=>this.deliver(message))};constructor(implementations){
super();this.#multiplexer=new Multiplexer(implementations);this.markUp()}join(){this.markUp()}leave(){
this.markDown();this.#multiplexer.close()}send(message){this.#multiplexer.receive(this.#port,null,message)}};var REJOIN_ATTEMPT=4;var WorkerLink=class extends Link{#script;#port=null;constructor(script){super();
this.#script=script}async join(timeoutMs){const tab=`${PROTOCOL_NAME} tab ${createUuid()}`;await holdLock(
tab);const worker=new SharedWorker(this.#script,{type:"module",name:PROTOCOL_NAME});const port=this.#port=
worker.port;await new Promise((resolve,reject)=>{const fail=why=>(port.close(),reject(new Error(`the\
 shared worker ${why}`)));worker.onerror=()=>fail(`cannot be loaded from ${this.#script}`);if(timeoutMs)
setTimeout(()=>this.isUp||fail("does not answer"),timeoutMs);port.onmessage=({data})=>{if(!data.hello)
return this.deliver(data);whenReleased(data.hello,()=>this.#rejoin(port));resolve()};port.postMessage(
{hello:tab})});this.markUp();return this}leave(){this.send({type:"bye"});this.#port=null;this.markDown()}send(message){
if(this.isUp)this.#port.postMessage(message)}#rejoin(port){if(port!==this.#port)return;this.markDown();
const retry=()=>setTimeout(()=>this.#rejoin(this.#port),drawBackoff(REJOIN_ATTEMPT));this.join().catch(
retry)}};var links=new Map;function getOrCreate(key,create){if(!links.has(key))links.set(key,create());return links.
get(key)}async function openLink({share=true,worker=import.meta.url,WebSocket,EventSource}){const createLocal=()=>new LocalLink(
{WebSocket,EventSource});const openLocal=()=>getOrCreate(WebSocket??EventSource??"page",createLocal);
const openChannel=()=>getOrCreate("channel",()=>new ChannelLink().join());const openWorker=timeoutMs=>getOrCreate(
`worker ${worker}`,()=>new WorkerLink(worker).join(timeoutMs));if(share===false)return createLocal();
if(share==="worker")return openWorker();if(share==="channel")return openChannel();const isPage=typeof document!==
"undefined"&&!WebSocket&&!EventSource;if(share==="page"||!isPage)return openLocal();const openWithoutWorker=navigator.
locks&&globalThis.BroadcastChannel?openChannel:openLocal;const isSameOrigin=new URL(worker,location.
href).origin===location.origin;if(!globalThis.SharedWorker||!isSameOrigin)return openWithoutWorker();
return openWorker(ANSWER_TIMEOUT_MS).catch(openWithoutWorker)}var StreamError=class extends Error{constructor({type,code,message,...details}){super(message??code);
this.name="StreamError";this.code=code;this.details=details}};var TRANSPORTS=["auto","eventsource","websocket"];var ITERATED_TYPES=new Set(["record","delete","gap",
"snapshot"]);var SAVE_INTERVAL_MS=250;function connect(path,options){return new Stream(path,options).
connect()}var warnedServers=new Set;var nameOf=({topic,partition})=>`${topic}-${partition}`;function callSafely(callback){
try{return callback()}catch(error){if(globalThis.reportError)reportError(error);else setTimeout(()=>{
throw error})}}var Stream=class extends EventTarget{#options;#request;#link=null;#linkPromise=null;#state="\
closed";#attempt=0;#receivedPosition=null;#queue=[];#isDelivering=false;#iteration=null;#error=null;#troubleReason=null;#failing=new Set;#usedCredit=0;#writes=new Map;#listenedTypes=new Set;#saveTimer=null;constructor(path,options={}){
super();const{from,filter,fields,credit,credentials,token,transport="auto",parse}=options;if(!TRANSPORTS.
includes(transport)){throw new TypeError(`transport ${transport} is none of ${TRANSPORTS.join(", ")}`)}
if(transport==="eventsource"&&(token||credit!==void 0)){throw new TypeError("an EventSource takes ne\
ither token nor credit; use another transport")}this.id=createUuid();this.position=options.position??
null;this.#options=options;const view={...resolveAddress(path,options.base),filter,fields};const texts=Boolean(
parse);this.#request={...view,from,credit,credentials,transport,texts,token:Boolean(token)}}get state(){
return this.#state}connect(){if(this.#state!=="closed")return this;this.#error=null;this.#setState("\
connecting");this.#start(++this.#attempt);return this}close(){if(this.#state!=="closed")this.#finish(
{})}change({path,...view}){Object.assign(this.#request,view,path&&resolveAddress(path,this.#request.
base));const{path:newPath,filter,fields}=this.#request;this.#send({type:"change",attempt:this.#attempt,
view:{path:newPath,filter,fields}})}produce(record){const message={idempotencyKey:createUuid(),...record,
id:createUuid()};return new Promise((resolve,reject)=>{this.#writes.set(message.id,{message,resolve,
reject});this.#attach().then(isNewLink=>isNewLink||this.#sendWrite(message))})}[Symbol.asyncIterator](){
this.#iteration??={};this.connect();const end=()=>{this.#iteration=null;this.close();return Promise.
resolve({done:true,value:void 0})};return{next:()=>this.#next(),return:end}}addEventListener(type,...rest){
this.#listenedTypes.add(type);super.addEventListener(type,...rest)}async#start(attempt){try{this.position??=
await this.#options.store?.load()??null}catch(error){this.#emit("error",error)}if(attempt!==this.#attempt)
return;if(!this.#queue.length)this.#receivedPosition=this.position;this.#deliverQueue();const isNewLink=await this.#attach();
if(!isNewLink&&attempt===this.#attempt)this.#sendOpen()}async#attach(){if(this.#link)return false;try{
this.#linkPromise??=openLink(this.#options);const link=await this.#linkPromise;if(this.#link)return false;
this.#link=link}catch(error){this.#linkPromise=null;for(const{reject}of this.#writes.values())reject(
error);this.#writes.clear();if(this.#state!=="closed")this.#finish({error});return true}this.#link.attach(
this.id,{onUp:()=>this.#sendAll(),onDown:()=>this.#state==="closed"||this.#setState("reconnecting"),
onMessage:(message,attempt)=>this.#receive(message,attempt),onPageHide:()=>this.#savePosition()});return true}#detachIfIdle(){
if(this.#state!=="closed"||this.#writes.size)return;this.#link?.detach(this.id);this.#link=this.#linkPromise=
null}#sendAll(){for(const{message}of this.#writes.values())this.#sendWrite(message);if(this.#state!==
"closed")this.#sendOpen()}async#sendOpen(){const attempt=++this.#attempt;const jwt=await this.#getToken();
if(attempt!==this.#attempt)return;const{credit,...request}=this.#request;if(credit!==void 0){const waiting=this.#queue.
filter(({type})=>type==="record"||type==="delete");request.credit=Math.max(0,credit-waiting.length);
this.#usedCredit=0}this.#send({type:"open",attempt,request,position:this.#receivedPosition,jwt})}async#sendWrite(message){
const jwt=await this.#getToken();const{base,path}=this.#request;this.#send({type:"produce",base,message:{
path,...message},jwt})}#send(message){this.#link?.send({...message,stream:this.id})}async#getToken(){
for(let failures=0;this.#options.token;failures++){try{return await this.#options.token()}catch(error){
this.#emit("error",error);await new Promise(resolve=>setTimeout(resolve,drawBackoff(failures)));if(this.#state===
"closed"&&!this.#writes.size)break}}return void 0}async#renewToken(){this.#send({type:"token",jwt:await this.#getToken()})}#receive({
type,position,...content},attempt){if(type==="answer")return this.#settleWrite(content);if(type==="t\
oken")return this.#renewToken();if(type==="trouble"&&this.#state==="closed"){return this.#writes.size?
this.#reportTrouble(content):void 0}if(attempt!==this.#attempt)return;if(position!==void 0)this.#receivedPosition=
position||null;if(type==="records")this.#enqueue("record",this.#parse(content.records),position);else if(type===
"delete")this.#enqueue(type,[content.record],position);else if(type in GROUPED_EVENT_TYPES){this.#enqueue(
GROUPED_EVENT_TYPES[type],splitGroupedEvent(type,content),position)}else this.#enqueue(type.replace(
"-end",""),[content],position);this.#deliverQueue()}#parse(records){const{parse}=this.#options;return parse?
records.map(text=>callSafely(()=>parse(text))):records}#enqueue(type,payloads,position){const last=payloads.
length-1;payloads.forEach((payload,n)=>{this.#queue.push({type,payload,position:n===last?position:void 0})})}#deliverQueue(){
if(this.#isDelivering)return;this.#isDelivering=true;while(this.#queue.length&&this.#state!=="closed"&&
!this.#iteration){this.#deliver(this.#queue.shift())}this.#isDelivering=false;this.#iteration?.wake?.()}async#next(){
for(;;){while(this.#queue.length&&this.#state!=="closed"){const{type,payload}=this.#queue[0];const position=this.#deliver(
this.#queue.shift());if(ITERATED_TYPES.has(type)){return{done:false,value:{type,[type]:payload,position}}}}
if(this.#state==="closed"){this.#iteration=null;if(this.#error)throw this.#error;return{done:true,value:void 0}}
await new Promise(wake=>this.#iteration={wake})}}#deliver({type,payload,position:newPosition}){const position=newPosition===
void 0?this.position:newPosition||null;const context={position,id:this.id};if(type==="closed")this.#finish(
payload);else if(type==="lost")this.#setState("reconnecting",payload.reason);else if(type==="trouble")
this.#reportTrouble(payload);else if(type==="error")this.#emit(type,new StreamError(payload),context);else if(type!==
"position")this.#emit(type,payload,context);if(["begin","error","ready"].includes(type))this.#updateState(
type,payload);if(type==="record"||type==="delete")this.#useCredit();if(this.position!==position)this.#setPosition(
position);return position}#updateState(type,{partitions,pending,topic,partition,offset,code}){let reason="\
recovered";if(type==="begin"){reason=this.#endTrouble();if(partitions){const total=Object.values(partitions).
reduce((sum,count)=>sum+count,0);this.#failing=new Set((pending.length<total?[]:pending).map(nameOf))}}else if(partition===
void 0)return;else if(type==="ready")this.#failing.delete(nameOf({topic,partition}));else if(offset===
void 0){this.#failing.add(nameOf({topic,partition}));reason=code}this.#setState(this.#failing.size?"\
stale":"live",reason)}#setPosition(position){this.position=position;this.#emit("position",position);
if(!this.#options.store)return;this.#saveTimer??=setTimeout(()=>this.#savePosition(),SAVE_INTERVAL_MS)}#savePosition(){
if(this.#saveTimer===null)return;clearTimeout(this.#saveTimer);this.#saveTimer=null;callSafely(()=>this.#options.
store.save(this.position))}#useCredit(){const{credit}=this.#request;if(credit===void 0||++this.#usedCredit<
credit/2)return;this.#send({type:"credit",attempt:this.#attempt,n:this.#usedCredit});this.#usedCredit=
0}#settleWrite({id,error,...place}){const{message,resolve,reject}=this.#writes.get(id)??{};if(!this.#writes.
delete(id))return;if(this.#state==="closed")this.#endTrouble();const{idempotencyKey}=message;if(error)
reject(Object.assign(new StreamError(error),{idempotencyKey}));else resolve(place);this.#detachIfIdle()}#finish({
reason,error}){this.#attempt++;const ended=["closed","lost","trouble"];this.#queue=this.#queue.filter(
({type})=>!ended.includes(type));this.#endTrouble();this.#savePosition();this.#send({type:"leave"});
if(error)this.#error=error instanceof Error?error:new StreamError(error);this.#setState("closed",reason??
error?.code);if(error)this.#emit("error",this.#error);this.#iteration?.wake?.();this.#detachIfIdle()}#reportTrouble({
reason,attempts,hint}){const{base,path}=this.#request;const isNew=this.#troubleReason===null;const error=new StreamError(
{code:reason,message:hint,attempts,url:base+path});this.#troubleReason=reason;this.#emit("state",this.#state,
{reason,attempts,hint});if(isNew&&this.#state!=="reconnecting")this.#emit("error",error);if(warnedServers.
has(base))return;warnedServers.add(base);console.warn(`gateway.js: ${reason}: ${hint}. It goes on tr\
ying (${attempts} so far).`)}#endTrouble(){if(!this.#troubleReason)return void 0;warnedServers.delete(
this.#request.base);this.#troubleReason=null;return"recovered"}#setState(state,reason){if(this.#state===
state)return;if(state==="reconnecting"&&this.#state==="connecting")return;this.#state=state;this.#emit(
"state",state,{reason})}#emit(type,payload,context){const callback=this.#options[`on${type}`];if(callback)
callSafely(()=>callback.call(this,payload,context));if(!this.#listenedTypes.has(type))return;this.dispatchEvent(
new CustomEvent(type,{detail:{...context,[type]:payload}}))}};if(globalThis.SharedWorkerGlobalScope&&globalThis.name===PROTOCOL_NAME)serveTabs(globalThis);export{Stream,StreamError,connect};
