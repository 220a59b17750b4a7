"""500 tools of an imaginary business, and 100 requests for them in up to three wordings each."""

from __future__ import annotations

from framework.tools.arguments import SchemaArguments
from framework.tools.tool import Tool
from framework.types.messages import ToolDefinition

_TABLE = """
billing: invoice list get create send void
billing: refund list get create approve cancel; payment list get capture retry export
billing: subscription list get start pause cancel
billing: coupon list get create update delete; tax_rate list get create update delete
billing: payout list get create cancel export
billing: price list get create update archive; credit_note list get create send void
billing: dispute list get accept contest close
crm: customer list get create update merge
crm: lead list get create convert delete; deal list get create update close
crm: note list get add update delete
crm: company list get create update delete; campaign list get launch pause report
crm: segment list get create update delete
crm: contact list get create update unsubscribe; call_log list get add update delete
crm: contract list get create sign terminate
shop: order list get create cancel ship
shop: product list get create update delete; stock_level list get adjust transfer count
shop: shipment list get create track cancel
shop: return_label list get create print void; basket list get add_item remove_item clear
shop: review list get publish hide reply
shop: gift_card list get issue top_up block; supplier list get create update delete
shop: warehouse list get create update close
helpdesk: ticket list get open assign resolve
helpdesk: reply list get send draft delete; macro list get run update delete
helpdesk: escalation list get create assign close
helpdesk: article list get write publish delete; queue list get create update delete
helpdesk: survey list get send close report
helpdesk: sla list get create update delete; tag list get add rename remove
helpdesk: attachment list get upload download delete
hr: employee list get hire update offboard
hr: vacation list get request approve reject; payslip list get create send export
hr: applicant list get invite reject hire
hr: shift list get plan swap cancel; expense list get submit approve reject
hr: training list get book cancel complete
hr: goal list get set update review; badge list get issue block replace
hr: absence list get report update delete
git: repository list get create fork archive
git: issue list get open comment close; pull_request list get open merge close
git: branch list get create protect delete
git: release list get create publish delete; commit list get compare revert sign
git: workflow list get run rerun cancel
git: secret list get set rotate delete; runner list get register update remove
git: collaborator list get invite update remove
calendar: event list get create move cancel
calendar: room list get book release update; attendee list get invite remind remove
calendar: reminder list get set snooze delete
calendar: holiday list get add update delete; availability list get set share clear
calendar: poll list get create vote close
calendar: calendar list get create share delete; agenda list get write send update
calendar: recording list get start stop share
storage: file list get upload download delete
storage: folder list get create move delete; link list get share expire revoke
storage: version list get restore compare delete
storage: lock list get set release extend; archive list get create extract delete
storage: permission list get grant update revoke
storage: quota list get set raise report; thumbnail list get render refresh delete
storage: label list get add rename remove
monitoring: alert list get acknowledge silence resolve
monitoring: dashboard list get create share delete; metric list get query export delete
monitoring: incident list get declare update resolve
monitoring: log_stream list get search tail export; probe list get create run delete
monitoring: on_call list get swap page update
monitoring: status_page list get publish update hide; budget_alarm list get set update delete
monitoring: trace list get search compare export
travel: flight list search book change cancel
travel: hotel list search book change cancel; train list search book change cancel
travel: visa list get request renew cancel
travel: trip list get plan approve report; rental_car list search book extend cancel
travel: receipt list get scan submit delete
travel: mileage list get add update delete; seat list get choose upgrade release
travel: per_diem list get claim update delete
"""
"""Lines of `server: thing verb …; thing verb …`."""
_VERBS = {
    "list": "List the {s} that match a filter.",
    "get": "Return one {t} with all its fields.",
    "create": "Create a new {t}.",
    "update": "Change fields of an existing {t}.",
    "delete": "Delete a {t} for good.",
    "search": "Search for {s} by date and place.",
    "export": "Export {s} as a CSV file.",
    "report": "Return figures about a {t}.",
}
"""What the description of a verb says; of others, the verb and the thing."""


def business_tools() -> list[Tool]:
    """Return the tools, such as `billing.create_invoice`."""
    tools = []
    for line in _TABLE.strip().splitlines():
        server, _, things = line.partition(": ")
        for entry in things.split("; "):
            thing, *verbs = entry.split(" ")
            tools += [_tool(server, thing, verb) for verb in verbs]
    return tools


def _tool(server: str, thing: str, verb: str) -> Tool:
    async def call(**arguments: object) -> str:
        return f"{verb} {thing}: {arguments}"

    words = thing.replace("_", " ")
    text = _VERBS.get(verb, f"{verb.replace('_', ' ').capitalize()} a {{t}}.").format(t=words, s=f"{words}s")
    names = {"list": ("filter", "limit"), "search": ("date", "place"), "create": ("name", "details")}.get(verb, ())
    properties = {name: {"type": "string"} for name in (*names, *(() if names else (f"{thing}_id", "reason")))}
    schema = SchemaArguments({"type": "object", "properties": properties, "additionalProperties": False})
    definition = ToolDefinition(name=f"{server}.{verb}_{thing}", description=text, parameters=schema.schema)
    return Tool(definition, call, schema, risk="low", idempotent=True)


_REQUESTS = """
billing.create_invoice | bill a customer | create invoice
billing.send_invoice | mail the invoice | send invoice
billing.void_invoice | take back an invoice | cancel invoice | void invoice
billing.create_refund | give money back | refund order | create refund
billing.approve_refund | sign off a refund | approve refund
billing.retry_payment | try a failed payment again | retry payment
billing.export_payment | payments as a spreadsheet | export payments
billing.pause_subscription | put a subscription on hold | pause subscription
billing.cancel_subscription | end a subscription | cancel subscription
billing.create_coupon | new discount code | create coupon
billing.update_tax_rate | change the VAT | update tax rate
billing.create_payout | pay out a balance | create payout
billing.contest_dispute | fight a chargeback | contest dispute
billing.archive_price | retire a price | archive price
crm.create_customer | register a client | create customer
crm.merge_customer | duplicate customers into one | merge customers
crm.convert_lead | turn a lead into a customer | convert lead
crm.close_deal | deal is won | close deal
crm.add_note | write down a remark about a customer | add note
crm.launch_campaign | start a mail campaign | launch campaign
crm.unsubscribe_contact | contact wants no more mails | unsubscribe contact
crm.sign_contract | sign the contract | sign contract
crm.terminate_contract | end a contract | terminate contract
crm.create_segment | new customer segment | create segment
shop.cancel_order | revoke an order | cancel order
shop.ship_order | send the order out | ship order
shop.adjust_stock_level | correct the stock of an item | adjust stock level
shop.transfer_stock_level | move stock to another warehouse | transfer stock
shop.track_shipment | where is my parcel | track shipment
shop.print_return_label | label to send goods back | print return label
shop.add_item_basket | put an item into the basket | add item basket
shop.hide_review | take a review offline | hide review
shop.issue_gift_card | sell a gift card | issue gift card
shop.list_supplier | who delivers to us | list suppliers
shop.create_product | add a product to the catalogue | create product
helpdesk.open_ticket | new support request | open ticket | create ticket
helpdesk.assign_ticket | give the ticket to Ann | assign ticket
helpdesk.resolve_ticket | ticket is solved | resolve ticket
helpdesk.send_reply | answer the customer in the ticket | send reply
helpdesk.run_macro | run a macro | macro run
helpdesk.create_escalation | this needs the second level | escalate | create escalation
helpdesk.publish_article | put a help article online | publish article
helpdesk.send_survey | ask how satisfied they are | send survey
helpdesk.upload_attachment | attach a screenshot | upload attachment
hr.hire_employee | new employee starts | hire employee
hr.offboard_employee | employee leaves the company | offboard employee
hr.request_vacation | I want two weeks off | request vacation
hr.approve_vacation | allow the holiday of Tim | approve vacation
hr.send_payslip | mail the payslips | send payslip
hr.invite_applicant | ask an applicant for an interview | invite applicant
hr.swap_shift | change shifts with Eva | swap shift
hr.submit_expense | hand in a taxi bill | submit expense
hr.book_training | sign up for a course | book training
hr.block_badge | badge was lost | block badge
hr.report_absence | I am ill today | report absence
git.fork_repository | copy the repository to my account | fork repository
git.open_issue | file a bug | open issue | create issue
git.comment_issue | comment on an issue | issue comment
git.close_issue | issue is done | close issue
git.open_pull_request | propose a change | open pull request
git.merge_pull_request | merge the PR | merge pull request
git.protect_branch | nobody may push to main | protect branch
git.publish_release | ship version 2.0 | publish release
git.revert_commit | undo a commit | revert commit
git.rerun_workflow | start the build again | rerun workflow
git.rotate_secret | new value for a secret | rotate secret
git.invite_collaborator | let Kim write to the repository | invite collaborator
calendar.create_event | schedule a meeting | create event | create calendar event
calendar.move_event | put the event on Friday | move event
calendar.cancel_event | call the event off | cancel event
calendar.book_room | reserve a room | book room
calendar.invite_attendee | invite Lee to the event | invite attendee
calendar.snooze_reminder | remind me later | snooze reminder
calendar.set_availability | my working hours | set availability
calendar.create_poll | find a date with everybody | create poll
calendar.share_calendar | let my boss see my calendar | share calendar
storage.upload_file | put a file into storage | upload file
storage.download_file | fetch a file | download file
storage.share_link | link for an external partner | share link
storage.revoke_link | link must stop working | revoke link
storage.restore_version | go back to the old version | restore version
storage.grant_permission | give Bo access to the folder | grant permission
storage.raise_quota | more disk space | raise quota
storage.extract_archive | unzip | extract archive
storage.create_folder | new directory | create folder
monitoring.acknowledge_alert | I look at the alert | acknowledge alert
monitoring.silence_alert | mute an alert | silence alert
monitoring.declare_incident | production is down | declare incident
monitoring.search_log_stream | find an error in the logs | search logs
monitoring.tail_log_stream | follow the log | tail log stream
monitoring.page_on_call | wake the engineer on duty | page on call
monitoring.publish_status_page | tell users about the outage | publish status page
monitoring.query_metric | CPU of last week | query metric
travel.search_flight | flights to Oslo | search flights
travel.book_hotel | room for two nights in a hotel | book hotel
travel.change_train | take a later train | change train booking | change train
travel.renew_visa | visa runs out | renew visa
travel.extend_rental_car | keep the rental car for another day | extend rental car
travel.choose_seat | seat at the window | choose seat
travel.scan_receipt | read a receipt | scan receipt
"""
REQUESTS = tuple(tuple(line.split(" | ")) for line in _REQUESTS.strip().splitlines())
"""The name of a tool, and what a model searches for until it has found it."""
